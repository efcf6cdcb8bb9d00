//! Who has to be told: the arithmetic of event indices (VIRTIO 1.2, 2.7.7.2 and 2.8.10).

/// Whether moving an index from `old` to `new` passed the place `event` that the other side asked
/// to be told about. All three wrap at 65536.
#[inline]
pub(crate) fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The same for a packed ring, where `event` is a place in the ring and its lap bit.
///
/// `new` is the next used place in the lap `wrap`; `moved` ring entries were passed since the last
/// call. A place outside the ring is always passed: a guest that writes nonsense is called (B5).
#[inline]
pub(crate) fn passed_packed(event: u16, new: u16, wrap: bool, moved: u16, size: u16) -> bool {
    let place = event & 0x7fff;
    if place >= size {
        return true;
    }
    let event = if (event >> 15 == 1) == wrap { place } else { place.wrapping_sub(size) };
    passed(event, new, new.wrapping_sub(moved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_passed_exactly_once_on_the_way_round() {
        for start in [0u16, 1, 255, 65530, 65535] {
            for event in 0..20u16 {
                let event = start.wrapping_add(event);
                let mut told = 0;
                for step in 0..30u16 {
                    let old = start.wrapping_add(step);
                    told += u32::from(passed(event, old.wrapping_add(1), old));
                }
                assert_eq!(told, 1, "start {start} event {event}");
            }
        }
    }

    #[test]
    fn a_packed_event_is_passed_once_a_lap_pair() {
        for size in [1u16, 3, 8, 1000] {
            for event_place in [0, size / 2, size - 1] {
                let (mut place, mut wrap, mut told) = (0, true, 0);
                for _ in 0..u32::from(size) * 2 {
                    place += 1;
                    if place == size {
                        (place, wrap) = (0, !wrap);
                    }
                    let event = event_place | 1 << 15;
                    told += u32::from(passed_packed(event, place, wrap, 1, size));
                }
                assert!(told >= 1, "size {size} event {event_place}");
            }
        }
        assert!(passed_packed(8, 0, true, 1, 8), "nonsense is always passed");
    }
}
