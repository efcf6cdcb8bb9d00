//! What an exit is about: its reason, its address, and what the events behind it say.

use bpf::op::*;

use super::{ExitAt, Place, Writer};
use crate::layout::*;

/// Numbers of reasons (`vmx.h`, `svm.h`).
mod intel {
    pub(super) const EXCEPTION_OR_NMI: i32 = 0;
    pub(super) const EXTERNAL_INTERRUPT: i32 = 1;
    pub(super) const INTERRUPT_WINDOW: i32 = 7;
    pub(super) const NMI_WINDOW: i32 = 8;
    pub(super) const CONTROL_REGISTER: i32 = 28;
    pub(super) const PORT: i32 = 30;
    pub(super) const APIC_ACCESS: i32 = 44;
    pub(super) const EOI_INDUCED: i32 = 45;
    pub(super) const PREEMPTION_TIMER: i32 = 52;
    pub(super) const APIC_WRITE: i32 = 56;
}

mod amd {
    /// From `interrupt` to `vintr`.
    pub(super) const ASYNCHRONOUS: [i32; 5] = [0x60, 0x61, 0x62, 0x63, 0x64];
    pub(super) const PORT: i32 = 0x7b;
    pub(super) const MSR: i32 = 0x7c;
    pub(super) const APIC_ACCESS: i32 = 0x402;
}

/// Of `intr_info`, the type, and that of an NMI.
const TYPE_BITS: i32 = 0x700;
const TYPE_NMI: i32 = 0x200;
/// Reasons without Intel's flags.
const REASON_BITS: i32 = 0xffff;

/// Of `info1`, what the detail is: shifted, and these bits.
#[derive(Clone, Copy)]
struct Part {
    reason: i32,
    kind: Kind,
    shift: i32,
    bits: i32,
}

const INTEL_PARTS: [Part; 5] = [
    Part { reason: intel::PORT, kind: Kind::Port, shift: 16, bits: 0xffff },
    Part { reason: intel::CONTROL_REGISTER, kind: Kind::Control, shift: 0, bits: 0x3f },
    Part { reason: intel::APIC_WRITE, kind: Kind::Apic, shift: 0, bits: 0xff0 },
    Part { reason: intel::APIC_ACCESS, kind: Kind::Apic, shift: 0, bits: 0xff0 },
    Part { reason: intel::EOI_INDUCED, kind: Kind::Vector, shift: 0, bits: 0xff },
];
const AMD_PARTS: [Part; 2] = [
    Part { reason: amd::PORT, kind: Kind::Port, shift: 16, bits: 0xffff },
    Part { reason: amd::APIC_ACCESS, kind: Kind::Apic, shift: 0, bits: 0xff0 },
];

impl Writer {
    /// r2 = the reason, r3 = the vendor.
    pub(super) fn reason(&mut self, at: ExitAt) {
        self.field(2, at.reason);
        self.field(3, at.vendor);
        let amd = self.code.op(JUMP_UNLESS_NUMBER, 3, 0, 0, INTEL);
        self.code.op(AND_NUMBER, 2, 0, 0, REASON_BITS);
        self.code.land(vec![amd]);
    }

    /// The key of an exit that begins.
    pub(super) fn identify(&mut self, at: ExitAt) {
        self.reason(at);
        self.code.op(LOAD_U32, 1, 10, super::THREAD_AT, 0);
        self.store_key(key::THREAD, 1);
        self.store_key(key::REASON, 2);
        self.store_key(key::VENDOR, 3);
        self.store_kind(Kind::None);
        self.code.set(1, 0);
        self.store_key(key::DETAIL, 1);
        // r4 = the address
        self.field(4, at.address);
        let upper = self.code.op(JUMP_IF_LESS, 4, 0, 0, 0);
        self.code.set(4, LOW as i32);
        self.code.land(vec![upper]);
        self.field(5, at.info);
        let amd = self.code.op(JUMP_UNLESS_NUMBER, 3, 0, 0, INTEL);
        let mut kept = self.parts(&INTEL_PARTS);
        let unless_nmi = self.code.op(JUMP_UNLESS_NUMBER, 2, 0, 0, intel::EXCEPTION_OR_NMI);
        self.field(1, at.interrupt);
        self.code.op(AND_NUMBER, 1, 0, 0, TYPE_BITS);
        let nmi = self.code.op(JUMP_IF_NUMBER, 1, 0, 0, TYPE_NMI);
        self.code.land(vec![unless_nmi]);
        let anywhere = [
            intel::EXTERNAL_INTERRUPT,
            intel::INTERRUPT_WINDOW,
            intel::NMI_WINDOW,
            intel::PREEMPTION_TIMER,
        ];
        let mut jumps = self.is_one_of(&anywhere);
        jumps.push(nmi);
        kept.push(self.code.op(JUMP, 0, 0, 0, 0));
        self.code.land(vec![amd]);
        kept.extend(self.parts(&AMD_PARTS));
        kept.push(self.ahead());
        jumps.extend(self.is_one_of(&amd::ASYNCHRONOUS));
        kept.push(self.code.op(JUMP, 0, 0, 0, 0));
        self.code.land(jumps);
        self.code.set(4, ASYNCHRONOUS as i32);
        self.code.land(kept);
        self.store_key(key::ADDRESS, 4);
        self.store_number(vcpu::AHEAD_KIND, 0);
    }

    /// Jumps of a reason in r2 that is one of these.
    fn is_one_of(&mut self, reasons: &[i32]) -> Vec<usize> {
        reasons.iter().map(|reason| self.code.op(JUMP_IF_NUMBER, 2, 0, 0, *reason)).collect()
    }

    /// What `info1`, in r5, says of the reason in r2. Jumps of those that were found.
    fn parts(&mut self, parts: &[Part]) -> Vec<usize> {
        let mut found = Vec::new();
        for Part { reason, kind, shift, bits } in parts.iter().copied() {
            let other = self.code.op(JUMP_UNLESS_NUMBER, 2, 0, 0, reason);
            self.code.op(SHIFT_RIGHT, 5, 0, 0, shift);
            self.code.op(AND_NUMBER, 5, 0, 0, bits);
            self.store_key(key::DETAIL, 5);
            self.store_kind(kind);
            found.push(self.code.op(JUMP, 0, 0, 0, 0));
            self.code.land(vec![other]);
        }
        found
    }

    /// A register that was told ahead of its exit, by AMD's code of Linux 6.1; the jump of one that was.
    fn ahead(&mut self) -> usize {
        let other = self.code.op(JUMP_UNLESS_NUMBER, 2, 0, 0, amd::MSR);
        self.load(1, vcpu::AHEAD_KIND);
        let none = self.code.op(JUMP_IF_NUMBER, 1, 0, 0, 0);
        self.store_key(key::KIND, 1);
        self.load(1, vcpu::AHEAD);
        self.store_key(key::DETAIL, 1);
        let found = self.code.op(JUMP, 0, 0, 0, 0);
        self.code.land(vec![other, none]);
        found
    }

    /// An event behind an exit says what that is about; the first of the strongest kind stays.
    pub(super) fn detail(&mut self, kind: Kind, at: Place) {
        self.row();
        self.load(1, vcpu::OPEN);
        let closed = self.code.op(JUMP_IF_NUMBER, 1, 0, 0, 0);
        self.done.push(closed);
        self.overrule(kind, at);
    }

    fn overrule(&mut self, kind: Kind, at: Place) {
        self.code.op(LOAD_U32, 1, 9, 8 * vcpu::KEY as i16 + key::KIND, 0);
        let stronger = self.code.op(JUMP_IF_ABOVE, 1, 0, 0, kind.overrules());
        self.done.push(stronger);
        self.field(2, at);
        if kind == Kind::Fault {
            self.code.op(AND_NUMBER, 2, 0, 0, FAULT_BITS);
        }
        self.store_kind(kind);
        self.store_key(key::DETAIL, 2);
    }

    /// A register; kept for the exit that comes, where none is under way.
    pub(super) fn msr(&mut self, at: Place) {
        self.row();
        self.load(1, vcpu::OPEN);
        let is_open = self.code.op(JUMP_UNLESS_NUMBER, 1, 0, 0, 0);
        self.field(2, at);
        self.store(vcpu::AHEAD, 2);
        self.store_number(vcpu::AHEAD_KIND, Kind::Msr as i32);
        let done = self.code.op(JUMP, 0, 0, 0, 0);
        self.done.push(done);
        self.code.land(vec![is_open]);
        self.overrule(Kind::Msr, at);
    }

    /// An exit of the guest's own guest, whatever it is.
    pub(super) fn nested(&mut self) {
        self.row();
        self.load(1, vcpu::OPEN);
        let closed = self.code.op(JUMP_IF_NUMBER, 1, 0, 0, 0);
        self.done.push(closed);
        self.code.set(1, NESTED as i32);
        self.store_key(key::ADDRESS, 1);
    }
}
