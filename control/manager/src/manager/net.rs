//! What the loop does about the network: ports opened and brought to their links, NICs given a home, operators' calls
//! that also concern devices or links.

use config::api::ApiError;
use config::plan::NicPlan;
use config::spec::{LinkState, NicChange, NicMove};
use config::{Change, NicSpec};
use tracing::info;

use crate::api::Reply;
use crate::calls::{Answered, UNDONE, UNTIL_RESTART, check_origin, not_kept};
use crate::device::Device;
use crate::kind::DevicePlan;
use crate::manager::Manager;
use crate::network::NetworkError;
use crate::network::host_ports::{Guest, HostPorts};
use crate::network::plugs::Home;
use crate::network::reload::Hosts;
use crate::network::travel::Begun;
use crate::opening::not_open::{NotOpen, refused_with};
use crate::opening::open::Socket;
use crate::rights::given;
use crate::rights::{Rights, refused_rights};

impl Manager {
    /// Opens the ports that are due, and brings the links' ends of those that were opened to their links.
    pub(crate) fn open_ports(&mut self) {
        for (number, host) in self.rooms.network.due(self.rooms.turn.now()) {
            let is_there = self.rooms.remote.link_is_there(&host, &self.rooms.plan);
            let (network, mut around) = self.rooms.network();
            network.open_uplink(number, is_there, &mut around);
        }
        for (number, end) in self.rooms.network.take_ends() {
            self.links(|remote, around| remote.plug_into_link(number, end, around));
        }
    }

    /// Gives a NIC its port, and opens what that leads to. Of any other device: nothing.
    ///
    /// # Errors
    /// As [`crate::network::Network::plug_in`].
    pub(crate) fn plug_in(&mut self, number: u32) -> Result<(), NetworkError> {
        let before = self.home_before(number);
        let (network, mut around) = self.rooms.network();
        network.plug_in(number, before, &mut around)?;
        if self.rooms.estate.is_none() {
            // Its predecessor still has it, or would find a second queue of its tap.
            self.open_ports();
        }
        Ok(())
    }

    /// Where a NIC that is being taken over is at home, and whether an operator brought it there.
    fn home_before(&mut self, number: u32) -> Option<Home> {
        let plan = self.rooms.devices.get(number)?.kind.plan();
        let device = self.rooms.estate.as_mut()?.device_of(&plan)?;
        let nic = device.words.nic.as_ref().filter(|nic| nic.home < self.rooms.cores.count())?;
        Some(Home { core: nic.home, by_hand: nic.by_hand })
    }

    /// Moves a NIC whose queues are all here to the switch that has its switch's name now.
    pub(crate) fn plug_in_anew(&mut self, number: u32) {
        self.unplug(number);
        if let Err(error) = self.plug_in(number)
            && let Some(device) = self.rooms.devices.get_mut(number)
        {
            device.problem = Some(error.to_string());
        }
    }

    /// Takes a NIC's port away. False: the host's end of its wire is still with its sidecore, and the
    /// device is settled again when it is back.
    pub(crate) fn unplug(&mut self, number: u32) -> bool {
        let (network, mut around) = self.rooms.network();
        network.unplug(number, &mut around)
    }

    /// Moves a NIC. The operator is answered when it is where it was to be, or is not going there.
    pub(crate) fn move_nic(&mut self, id: &str, wish: &NicMove, reply: Reply) {
        match self.rooms.travel().ask(id, wish) {
            Ok(Begun::LetGo) => reply.answer(self.rooms.nic_views().show(id, true)),
            Ok(Begun::Goes(number, begun)) => {
                self.rooms.moves.wait(number, begun.into_iter().collect(), reply);
            }
            Err(error) => reply.answer(Err(error)),
        }
    }

    pub(crate) fn add_nic(&mut self, spec: &NicSpec) -> Answered {
        let plan = self.rooms.plan.nic_from_api(spec)?;
        let id = plan.id.clone();
        let refused = |error: NotOpen| {
            refused_with(&format!("nic {id:?}"), &error, "put that right, or name something else")
        };
        let opened = plan.host().map(|host| {
            let opened = self.rooms.network.open_host(host, Some(Guest::from(&plan)));
            opened.map_err(|error| refused(NotOpen::Wrong(error.to_string())))
        });
        let device = self.open_nic_on(plan.clone(), opened.transpose()?).map_err(refused)?;
        let number = self.serve_device(device).map_err(refused)?;
        self.rooms.plan.nics.push(plan);
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            self.begin_removal(number, None);
            self.settle();
            return Err(not_kept(&error, UNDONE));
        }
        info!(nic = id, "added");
        self.rooms.nic_views().show(&id, true)
    }

    /// A NIC on what was opened for it.
    ///
    /// # Errors
    /// As [`DevicePlan::open`]; what was opened is closed then.
    pub(crate) fn open_nic_on(
        &mut self,
        plan: NicPlan,
        opened: Option<HostPorts>,
    ) -> Result<Device, NotOpen> {
        let host = plan.host().cloned();
        match DevicePlan::Nic(plan).open(Socket::Own, &mut self.rooms) {
            Ok(mut device) => {
                if let Some(nic) = device.kind.nic_mut() {
                    nic.bring(opened);
                }
                Ok(device)
            }
            Err(error) => {
                if let (Some(ports), Some(host)) = (opened, host) {
                    self.rooms.network.take_away(&host, ports);
                }
                Err(error)
            }
        }
    }

    pub(crate) fn change_nic(&mut self, id: &str, change: &NicChange) -> Answered {
        self.check_nic_made_by_api(id)?;
        let after = self.rooms.plan.nic_changed(id, change)?;
        let before =
            self.rooms.plan.nic(id).cloned().ok_or_else(|| self.rooms.plan.no_such_nic(id))?;
        Rights::of(&after.rights).map_err(refused_rights)?;
        self.rooms.nic_calls().set_plan(after.clone());
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            self.rooms.nic_calls().set_plan(before);
            return Err(not_kept(&error, UNDONE));
        }
        let has_others = before.rights != after.rights;
        if has_others && let Some(Err(error)) = self.rooms.devices.named_mut(id).map(given::put) {
            self.rooms.nic_calls().set_plan(before);
            self.keep_until_restart()?;
            return Err(refused_rights(error));
        }
        self.apply_nic(&before, &after);
        info!(nic = id, "set");
        self.rooms.nic_views().show(id, true)
    }

    fn keep_until_restart(&self) -> Result<(), ApiError> {
        let kept = self.rooms.state.keep(&self.rooms.plan);
        kept.map_err(|error| not_kept(&error, UNTIL_RESTART))
    }

    fn apply_nic(&mut self, before: &NicPlan, after: &NicPlan) {
        if let Some(number) = self.rooms.nic_calls().apply(before, after) {
            self.rooms.services().set(number);
        }
    }

    /// Takes the cable of any NIC out, or puts it in.
    pub(crate) fn set_link(&mut self, id: &str, link: LinkState) -> Answered {
        if self.rooms.nic_calls().set_link(id, link)? {
            self.keep_until_restart()?;
        }
        self.rooms.nic_views().show(id, true)
    }

    pub(crate) fn check_nic_made_by_api(&self, id: &str) -> Result<(), ApiError> {
        let plan = self.rooms.plan.nic(id).ok_or_else(|| self.rooms.plan.no_such_nic(id))?;
        check_origin(&format!("nic {id:?}"), &plan.origin)
    }

    /// The part of a reload that is about switches and NICs.
    pub(crate) fn apply_net_change(&mut self, change: &Change, hosts: &mut Hosts) {
        match change {
            Change::RemoveNic { id } => match self.rooms.devices.number_of(id) {
                Some(number) => self.begin_removal(number, None),
                None => self.drop_shut(id),
            },
            Change::SetNic(plan) => {
                if let Some(before) = self.rooms.plan.nic(&plan.id).cloned() {
                    self.rooms.nic_calls().set_plan((**plan).clone());
                    self.apply_nic(&before, plan);
                }
            }
            change => {
                self.rooms.switch_calls().apply(change, hosts);
                self.open_ports();
            }
        }
    }
}
