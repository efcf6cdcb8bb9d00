//! VLANs (IEEE 802.1Q): which a frame is of when it comes in, and how it leaves a port.
//!
//! Not who gets it (`switch`), not the bytes of tags (`frame::tag`). Called by `switch`.
//!
//! Rules hold as soon as one port of a switch has one; before that tags are bytes like others.
//!
//! | port | takes | gives |
//! |---|---|---|
//! | none | untagged frames, as of VLAN 0 | frames of VLAN 0, untagged |
//! | access | untagged frames, as of its VLAN | frames of its VLAN, untagged |
//! | trunk | frames with the tag of an allowed VLAN or the native one; untagged ones as of the native one | allowed ones with their tag, the native one untagged |
//!
//! A priority tag (VID 0) counts as none and is taken out. To keep frames from hopping into another
//! VLAN at the next switch, no tag is uncovered: a frame that has another tag under one that must go
//! is refused, and so is one whose first tag is a provider's.

use std::fmt;

use frame::tag;

use crate::reason::DropReason;
use crate::rules::BadPort;

/// The last VLAN that can be used; 4,095 is reserved.
pub const VLAN_LAST: u16 = 4094;

/// Which VLANs a port carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vlan {
    /// No rule: VLAN 0, which only ports without a rule carry; all frames as they are while no port
    /// of the switch has a rule.
    None,
    /// One VLAN, without tags.
    Access(u16),
    /// Several, with tags.
    Trunk {
        /// The VLAN of untagged frames; without one they are dropped.
        native: Option<u16>,
        /// Those that are tagged.
        allowed: Vlans,
    },
}

impl Vlan {
    /// Whether all VLANs in it can be used.
    pub(crate) fn check(&self) -> Result<(), BadPort> {
        match self {
            Vlan::Access(vlan) | Vlan::Trunk { native: Some(vlan), .. } => check(*vlan),
            Vlan::None | Vlan::Trunk { native: None, .. } => Ok(()),
        }
    }

    /// The VLAN of untagged frames.
    pub(crate) fn untagged(&self) -> Option<u16> {
        match self {
            Vlan::None => Some(0),
            Vlan::Access(vlan) => Some(*vlan),
            Vlan::Trunk { native, .. } => *native,
        }
    }

    fn carries_tagged(&self, vlan: u16) -> bool {
        matches!(self, Vlan::Trunk { allowed, .. } if allowed.contains(vlan))
    }

    /// The VLAN of a frame that comes in here.
    ///
    /// # Errors
    /// [`DropReason::Vlan`] when the rule does not take it, [`DropReason::Runt`] when it ends in its
    /// tag.
    #[inline]
    pub(crate) fn ingress(&self, head: &[u8]) -> Result<VlanId, DropReason> {
        let first = tag::ether_type(head, 0).ok_or(DropReason::Runt)?;
        if !tag::is_tag(first) {
            return self.untagged().map(VlanId::untagged).ok_or(DropReason::Vlan);
        }
        // A provider's tag is not ours to read, and the next switch may read it otherwise.
        if first != tag::TYPE {
            return Err(DropReason::Vlan);
        }
        let second = tag::ether_type(head, 1).ok_or(DropReason::Runt)?;
        let is_stacked = tag::is_tag(second);
        let vlan = tag::read(head).ok_or(DropReason::Runt)?.vlan();
        if vlan == 0 {
            let native = self.untagged().filter(|_| !is_stacked);
            return native.map(VlanId::priority).ok_or(DropReason::Vlan);
        }
        let is_native = matches!(self, Vlan::Trunk { native, .. } if *native == Some(vlan));
        if is_native || self.carries_tagged(vlan) {
            return Ok(VlanId::tagged(vlan, is_stacked));
        }
        Err(DropReason::Vlan)
    }

    /// How a frame of `vlan` leaves here.
    #[inline]
    pub(crate) fn egress(&self, vlan: VlanId) -> Egress {
        let number = vlan.number();
        if self.untagged() == Some(number) {
            return match vlan.form() {
                VlanId::TAGGED | VlanId::PRIORITY => Egress::Pop,
                VlanId::STACKED => Egress::Refuse(DropReason::Vlan),
                _ => Egress::Keep,
            };
        }
        if !self.carries_tagged(number) {
            return Egress::Refuse(DropReason::Vlan);
        }
        match vlan.form() {
            VlanId::TAGGED | VlanId::STACKED => Egress::Keep,
            VlanId::PRIORITY => Egress::Retag(number),
            _ => Egress::Push(number),
        }
    }
}

/// A set of VLANs.
#[derive(Clone, PartialEq, Eq)]
pub struct Vlans(Box<[u64; 64]>);

impl Vlans {
    /// Those in `vlans`, in any order.
    ///
    /// # Errors
    /// The first that is not one of 1 to [`VLAN_LAST`].
    pub fn new(vlans: &[u16]) -> Result<Vlans, BadPort> {
        let Vlans(mut words) = Vlans::none();
        for vlan in vlans {
            check(*vlan)?;
            if let Some(word) = words.get_mut(usize::from(*vlan) / 64) {
                *word |= 1 << (vlan % 64);
            }
        }
        Ok(Vlans(words))
    }

    /// None at all.
    pub fn none() -> Vlans {
        Vlans(Box::new([0; 64]))
    }

    /// All that can be used.
    pub fn all() -> Vlans {
        let mut words = Box::new([u64::MAX; 64]);
        words[0] &= !1;
        words[63] &= !(1 << 63);
        Vlans(words)
    }

    /// Whether `vlan` is among them.
    #[inline]
    pub fn contains(&self, vlan: u16) -> bool {
        self.0.get(usize::from(vlan) / 64).is_some_and(|word| word >> (vlan % 64) & 1 != 0)
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (1..=VLAN_LAST).filter(|vlan| self.contains(*vlan))
    }
}

impl fmt::Debug for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

fn check(vlan: u16) -> Result<(), BadPort> {
    if (1..=VLAN_LAST).contains(&vlan) { Ok(()) } else { Err(BadPort::Vlan(vlan)) }
}

/// The VLAN of a frame, and how the frame says it: what [`Egress`] is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanId(u16);

impl VlanId {
    /// No VLAN: of a wire, and of a switch without rules.
    pub const NONE: VlanId = VlanId(0);

    const NUMBER: u16 = 0xfff;
    const PRIORITY: u16 = 1 << 12;
    const TAGGED: u16 = 2 << 12;
    const STACKED: u16 = 3 << 12;

    /// The VLAN: 0 for none.
    #[inline]
    pub fn number(self) -> u16 {
        self.0 & VlanId::NUMBER
    }

    fn form(self) -> u16 {
        self.0 & !VlanId::NUMBER
    }

    fn untagged(vlan: u16) -> VlanId {
        VlanId(vlan & VlanId::NUMBER)
    }

    fn priority(vlan: u16) -> VlanId {
        VlanId(vlan & VlanId::NUMBER | VlanId::PRIORITY)
    }

    fn tagged(vlan: u16, is_stacked: bool) -> VlanId {
        let form = if is_stacked { VlanId::STACKED } else { VlanId::TAGGED };
        VlanId(vlan & VlanId::NUMBER | form)
    }
}

/// What becomes of a frame's tag at a receiver (`frame::tag` does it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// The frame goes as it is.
    Keep,
    /// It gets a tag with this VLAN.
    Push(u16),
    /// It loses its tag.
    Pop,
    /// Its priority tag gets this VLAN.
    Retag(u16),
    /// It does not go there. In a flood that is no loss; otherwise it is a drop.
    Refuse(DropReason),
}

impl Egress {
    /// Bytes by which the frame grows: for its length, and `frame::Offload::shifted`.
    #[inline]
    pub fn shift(self) -> i16 {
        match self {
            Egress::Push(_) => tag::SIZE as i16,
            Egress::Pop => -(tag::SIZE as i16),
            Egress::Keep | Egress::Retag(_) | Egress::Refuse(_) => 0,
        }
    }
}
