//! Bytes that one process hands to another that takes over from it: an end of the protocol without its sessions.
//!
//! Little-endian, in order, and read like a stranger's: each number is bounded where it is used. Not what is in them
//! (`client`, `iohost`), nor their version, which is said by whoever puts them together.

use crate::wire::Verifier;

/// Turns, numbers of bindings and counts of writes grow by one: none that is read is near the end of its 64 bits.
pub(crate) const COUNT_MAX: u64 = 1 << 62;

/// What was handed over is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSaved {
    /// It ends before it should.
    #[error("it is cut short")]
    Short,
    /// Something in it has no sense, or is beyond its bounds.
    #[error("it makes no sense")]
    Field,
}

/// Puts numbers behind one another.
#[derive(Debug)]
pub struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    /// 8 bits.
    pub fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    /// 16 bits.
    pub fn u16(&mut self, number: u16) {
        self.bytes(&number.to_le_bytes());
    }

    /// 32 bits.
    pub fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    /// 64 bits.
    pub fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// As they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Yes or no.
    pub fn flag(&mut self, is_set: bool) {
        self.u8(is_set.into());
    }

    pub(crate) fn verifier(&mut self, verifier: Option<Verifier>) {
        self.flag(verifier.is_some());
        let Verifier { boot, contents } = verifier.unwrap_or_default();
        self.u64(boot);
        self.u64(contents);
    }
}

/// Takes them off again.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// So many bytes.
    ///
    /// # Errors
    /// There are less.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], BadSaved> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(BadSaved::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadSaved> {
        self.bytes(N)?.try_into().map_err(|_| BadSaved::Short)
    }

    /// 8 bits.
    ///
    /// # Errors
    /// There are less.
    pub fn u8(&mut self) -> Result<u8, BadSaved> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// 16 bits.
    ///
    /// # Errors
    /// There are less.
    pub fn u16(&mut self) -> Result<u16, BadSaved> {
        self.array().map(u16::from_le_bytes)
    }

    /// 32 bits.
    ///
    /// # Errors
    /// There are less.
    pub fn u32(&mut self) -> Result<u32, BadSaved> {
        self.array().map(u32::from_le_bytes)
    }

    /// 64 bits.
    ///
    /// # Errors
    /// There are less.
    pub fn u64(&mut self) -> Result<u64, BadSaved> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number that grows by one, and is far from its end.
    ///
    /// # Errors
    /// It is not, or there are less than 64 bits.
    pub fn count(&mut self) -> Result<u64, BadSaved> {
        let number = self.u64()?;
        if number < COUNT_MAX { Ok(number) } else { Err(BadSaved::Field) }
    }

    /// Yes or no.
    ///
    /// # Errors
    /// It is neither.
    pub fn flag(&mut self) -> Result<bool, BadSaved> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadSaved::Field),
        }
    }

    pub(crate) fn key(&mut self) -> Result<[u8; 32], BadSaved> {
        self.array()
    }

    pub(crate) fn verifier(&mut self) -> Result<Option<Verifier>, BadSaved> {
        let is_some = self.flag()?;
        let verifier = Verifier { boot: self.u64()?, contents: self.u64()? };
        Ok(is_some.then_some(verifier))
    }

    /// Nothing is left.
    ///
    /// # Errors
    /// Something is.
    pub fn end(&self) -> Result<(), BadSaved> {
        if self.0.is_empty() { Ok(()) } else { Err(BadSaved::Field) }
    }
}
