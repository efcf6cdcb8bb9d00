//! Instructions, and a list of them that grows.

/// `struct bpf_insn`: destination register in the lower half of `registers`, source in the upper.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does ([`op`]).
    pub code: u8,
    /// Destination, and source.
    pub registers: u8,
    /// From a register's address, or from the next instruction.
    pub offset: i16,
    /// The number in it.
    pub immediate: i32,
}

/// Codes (`linux/bpf.h`).
#[expect(missing_docs, reason = "the names say it")]
pub mod op {
    pub const LOAD_U32: u8 = 0x61;
    pub const LOAD_U64: u8 = 0x79;
    pub const STORE_U32: u8 = 0x63;
    pub const STORE_U64: u8 = 0x7b;
    pub const STORE_NUMBER_U32: u8 = 0x62;
    pub const STORE_NUMBER_U64: u8 = 0x7a;
    /// With the immediate [`FETCH_ADD`]: whole, and in order with all that is before and behind it.
    pub const ATOMIC_U64: u8 = 0xdb;
    pub const FETCH_ADD: i32 = 0x01;
    pub const LOAD_ADDRESS: u8 = 0x18;
    pub const MOVE: u8 = 0xbf;
    pub const MOVE_U32: u8 = 0xbc;
    pub const SET: u8 = 0xb7;
    pub const ADD: u8 = 0x0f;
    pub const ADD_NUMBER: u8 = 0x07;
    pub const SUBTRACT: u8 = 0x1f;
    pub const OR: u8 = 0x4f;
    pub const AND_NUMBER: u8 = 0x57;
    pub const SHIFT_LEFT: u8 = 0x67;
    pub const SHIFT_RIGHT: u8 = 0x77;
    pub const MULTIPLY_U32: u8 = 0x24;
    pub const SHIFT_RIGHT_U32: u8 = 0x74;
    pub const JUMP: u8 = 0x05;
    pub const JUMP_IF_NUMBER: u8 = 0x15;
    pub const JUMP_UNLESS_NUMBER: u8 = 0x55;
    pub const JUMP_IF_ABOVE: u8 = 0x25;
    /// Signed.
    pub const JUMP_IF_LESS: u8 = 0xc5;
    pub const JUMP_IF_AT_MOST: u8 = 0xbd;
    pub const JUMP_IF_EQUAL_U32: u8 = 0x1e;
    pub const CALL: u8 = 0x85;
    pub const EXIT: u8 = 0x95;
    /// The descriptor is of a map; the register gets the map.
    pub const MAP: u8 = 1;
    /// The descriptor is of a map; the register gets the address of its first value.
    pub const MAP_VALUE: u8 = 2;

    /// Whether the code is of a jump inside the program.
    pub const fn is_jump(code: u8) -> bool {
        matches!(code & 7, 5 | 6) && !matches!(code, CALL | EXIT)
    }
}

/// Functions of the kernel's that programs call.
#[expect(missing_docs, reason = "the names say it")]
pub mod helper {
    pub const LOOK_UP: i32 = 1;
    pub const UPDATE: i32 = 2;
    pub const NOW_NS: i32 = 5;
    pub const THIS_CPU: i32 = 8;
    /// The process's number in the upper half, the thread's in the lower.
    pub const THIS_THREAD: i32 = 14;
}

/// A program as it is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code(Vec<Instruction>);

impl Code {
    /// One instruction more; returns its place.
    pub fn op(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> usize {
        self.0.push(Instruction { code, registers: from << 4 | to, offset, immediate });
        self.0.len() - 1
    }

    /// Jumps at these places go to what comes next.
    pub fn land(&mut self, places: Vec<usize>) {
        let here = self.0.len();
        for place in places {
            if let Some(jump) = self.0.get_mut(place) {
                jump.offset = (here - place - 1) as i16;
            }
        }
    }

    /// A register gets the address of a map ([`op::MAP`]) or of its first value ([`op::MAP_VALUE`]): two instructions.
    pub fn address(&mut self, to: u8, what: u8, map: i32) {
        self.op(op::LOAD_ADDRESS, to, what, 0, map);
        self.op(0, 0, 0, 0, 0);
    }

    /// A register gets a number.
    pub fn set(&mut self, to: u8, number: i32) {
        self.op(op::SET, to, 0, 0, number);
    }

    /// A register gets what another one has.
    pub fn copy(&mut self, to: u8, from: u8) {
        self.op(op::MOVE, to, from, 0, 0);
    }

    /// The kernel's function; r0 is what it answers, and r1 to r5 are spent.
    pub fn call(&mut self, helper: i32) {
        self.op(op::CALL, 0, 0, 0, helper);
    }

    /// The end: r0 is 0.
    pub fn end(&mut self) {
        self.set(0, 0);
        self.op(op::EXIT, 0, 0, 0, 0);
    }

    /// All of it.
    pub fn whole(self) -> Vec<Instruction> {
        self.0
    }
}
