//! On which NUMA node a guest's memory is.
//!
//! A sample of pages is asked, and only those that are there: asking for another would bring it, and to
//! this thread's node. Not what follows from that (`schedule::Placement`). Called by control, on hosts
//! with several nodes.

use core::ffi::{c_int, c_void};
use std::ptr;

use crate::map::GuestMap;
use crate::mapping::Mapping;

/// Pages asked for, of all of a guest's memory: two system calls each.
const PAGES: usize = 64;
/// Nodes that are told apart; Linux is built for at most 1,024.
const NODES_MAX: usize = 1024;

/// Of get_mempolicy(2): the node of the page at an address.
const MPOL_F_NODE: libc::c_ulong = 1;
const MPOL_F_ADDR: libc::c_ulong = 2;

/// What a sample of a guest's pages says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Pages asked for.
    pub asked: u32,
    /// Of these, how many are there.
    pub there: u32,
    /// The node that most of those are on; `None` without any, or when the kernel does not say.
    pub node: Option<u32>,
}

impl GuestMap {
    /// Where its pages are, of a sample of 64 at equal distances.
    pub fn sample_pages(&self) -> Pages {
        let total: u64 = self.regions().iter().map(|region| region.mapping.len() as u64).sum();
        let step = (total / PAGES as u64).max(rustix::param::page_size() as u64);
        let (mut pages, mut on) = (Pages::default(), vec![0u32; NODES_MAX]);
        // The first byte of each region, and then one in each step.
        for mapping in self.regions().iter().map(|region| &region.mapping).take(PAGES) {
            let step = usize::try_from(step).unwrap_or(usize::MAX);
            for at in (0..mapping.len()).step_by(step) {
                pages.asked += 1;
                if !is_there(mapping, at) {
                    continue;
                }
                pages.there += 1;
                let node = node_of(mapping, at).and_then(|node| on.get_mut(node));
                if let Some(count) = node {
                    *count += 1;
                }
            }
        }
        let most = on.iter().enumerate().max_by_key(|(node, count)| (**count, NODES_MAX - node));
        pages.node = most.filter(|(_, count)| **count > 0).map(|(node, _)| node as u32);
        pages
    }
}

/// The start of the page of byte `at`, which lies in the mapping.
fn page_of(mapping: &Mapping, at: usize) -> *mut c_void {
    let byte = mapping.base().as_ptr().wrapping_add(at);
    let page = rustix::param::page_size();
    byte.map_addr(|address| address & !(page - 1)).cast()
}

fn is_there(mapping: &Mapping, at: usize) -> bool {
    let mut there = 0u8;
    // SAFETY: the page overlaps the mapping, which stays mapped meanwhile; one page is answered by one
    // byte; no byte of the page is touched.
    let done = unsafe { libc::mincore(page_of(mapping, at), 1, &mut there) };
    done == 0 && there & 1 == 1
}

fn node_of(mapping: &Mapping, at: usize) -> Option<usize> {
    let mut node: c_int = -1;
    let flags = MPOL_F_NODE | MPOL_F_ADDR;
    let (no_mask, no_bits) = (ptr::null_mut::<libc::c_ulong>(), 0 as libc::c_ulong);
    // SAFETY: with these flags the kernel writes one int, the node of the page, and takes no mask; a page
    // that cannot be had is an error, not a signal.
    let done = unsafe {
        let page = page_of(mapping, at);
        libc::syscall(libc::SYS_get_mempolicy, &raw mut node, no_mask, no_bits, page, flags)
    };
    usize::try_from(node).ok().filter(|_| done == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_nobody_has_written_are_not_brought() {
        let map = GuestMap::anonymous(64 << 20).unwrap();
        let pages = map.sample_pages();
        assert_eq!((pages.asked, pages.there, pages.node), (64, 0, None));
        assert_eq!(map.sample_pages(), pages, "and asking changes nothing");
        let span = map.span(0, 4096).unwrap();
        assert!(map.write(span, 0, &[1; 4096]));
        let pages = map.sample_pages();
        assert!((1..=64).contains(&pages.there), "a huge page is one of them at least");
        // Without NUMA in the kernel nobody knows.
        assert!(pages.node.is_none_or(|node| node < 64), "{pages:?}");
    }

    #[test]
    fn a_small_guest_has_few_pages() {
        let map = GuestMap::anonymous(3 * rustix::param::page_size() as u64).unwrap();
        assert_eq!(map.sample_pages().asked, 3);
    }
}
