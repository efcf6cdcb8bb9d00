//! The rows by name: the one list of them. `misdeeds!(split tests)` makes a test of each row of that
//! module, `misdeeds!(split all)` puts each into the vector `all`.
//!
//! Not what they do: that is in the module of their name.

/// Every row of a module.
#[macro_export]
macro_rules! misdeeds {
    (split $form:ident) => {
        $crate::each_row! { $form ring split
            a01_descriptor_loop
            a02_loop_in_an_indirect_table
            a03_next_outside_the_table
            a04_next_outside_the_indirect_table
            a05_indirect_inside_indirect
            a06_indirect_and_next_together
            a07_direct_descriptors_before_an_indirect_one
            a08_write_flag_on_the_indirect_descriptor
            a09_indirect_table_of_bad_length
            a10_indirect_table_over_two_regions
            a11_indirect_though_not_negotiated
            a12_buffer_outside_memory
            a13_buffer_runs_past_its_region
            a14_address_and_length_wrap
            a15_buffer_over_two_regions
            a16_empty_descriptors
            a17_buffers_of_4_gib
            a18_readable_after_writable
            a19_available_index_jumps
            a20_available_index_goes_back
            a21_head_outside_the_table
            a22_one_head_offered_again_and_again
            a23_indices_wrap_in_a_ring_of_1
            a23_indices_wrap_in_a_ring_of_2
            a23_indices_wrap_in_a_ring_of_32768
            a24_parts_of_the_ring_over_each_other
            a25_rings_at_the_last_bytes_of_memory
            a26_data_goes_into_the_ring_itself
            a27_descriptors_that_change_after_the_kick
            a28_event_indices_that_mean_nothing
            a28_event_indices_that_mean_nothing_and_are_negotiated
            a33_guest_writes_what_is_the_devices
            a34_driver_without_version_1
        }
    };
    (packed $form:ident) => {
        $crate::each_row! { $form ring packed
            b01_lap_bits_that_contradict_the_lap
            b02_chain_without_end
            b03_buffer_id_outside_the_ring
            b03_buffer_id_twice_in_flight
            b04_indirect_beside_next_or_in_a_chain
            b04_indirect_though_not_negotiated
            b04_write_flag_on_the_table_is_ignored
            b05_nonsense_in_the_event_structure
            b06_a_bad_request_among_good_ones
            b07_ring_of_3
            b07_ring_of_1000
            b07_ring_of_32767
            b08_ring_base_outside_the_ring_or_of_the_wrong_lap
            b09_descriptor_rewritten_after_the_kick
        }
    };
    (blk $form:ident) => {
        $crate::each_row! { $form ring blk
            c01_chain_too_short_for_header_and_status
            c02_header_and_status_framed_oddly
            c03_sectors_beyond_the_end
            c04_data_that_is_not_whole_sectors
            c05_types_that_this_device_does_not_have
            c06_writes_to_a_disk_that_is_not_written
            c07_data_of_the_wrong_direction
            c08_flags_that_a_range_may_not_have
            c09_ranges_that_cannot_be
            c11_serial_number_into_a_buffer_of_another_size
            c12_flush_with_data_or_a_sector
            c14_status_of_no_bytes_or_that_the_device_may_not_write
            c15_nothing_but_what_was_read_is_written
            c17_config_space_beyond_its_end_and_a_cache_mode_of_2_to_255
        }
    };
    (storms $form:ident) => {
        $crate::each_row! { $form storm storms
            a29_kick_storm
            a29_kick_counter_that_is_full
            a30_ring_that_never_empties
            a30_ring_that_is_filled_faster_than_it_is_served
            a31_descriptors_of_one_byte
            a32_largest_requests_there_may_be
            a32_requests_larger_than_there_may_be
            c10_zeroing_as_much_as_there_may_be
            c10_zeroing_a_whole_disk_at_once
            c13_flush_storm
        }
    };
    (front_end $form:ident) => {
        $crate::each_row! { $form MEMORY front_end
            e3_payloads_of_a_wrong_size
            e4_flags_that_no_request_has
            e5_messages_that_are_not_known
            e6_too_many_and_too_few_descriptors
            e7_descriptors_of_another_kind
            e9_queues_that_do_not_exist
            e10_ring_sizes_that_no_ring_has
            e16_memory_that_cannot_be
            e24_in_flight_records_that_cannot_be
            e25_in_flight_records_that_would_take_all_memory
            e28_features_that_were_not_offered
            e21_dirty_logs_that_cannot_be
            e26_parts_of_the_config_space_that_are_not_there
            e27_config_space_that_may_only_be_read
            h15_descriptors_whose_front_end_is_gone
        }
    };
    (connection $form:ident) => {
        $crate::each_row! { $form MEMORY connection
            e1_a_message_that_does_not_end
            e2_messages_in_pieces_and_in_heaps
            e13_rings_that_are_not_in_memory
            e14_starts_in_which_something_is_missing_or_late
            e32_a_front_end_that_goes_at_each_message_and_at_each_byte
            e33_a_front_end_that_does_not_read_its_replies
            e33_a_front_end_that_does_not_read_its_channel
            e34_a_second_front_end_does_not_take_the_disk_away
            e34_hundreds_of_connections_that_say_nothing
        }
    };
    (coming $form:ident) => {
        $crate::each_row! { $form MEMORY coming
            e32_goes_after_every_byte_of_a_whole_session
            e33_replies_with_descriptors_that_are_not_read
            e34_links_that_spoke_once_and_stay
            e34_starts_and_stops_without_end
            attack_03_descriptor_whose_close_waits
            attack_07_flood_of_refused_messages
        }
    };
    (races $form:ident) => {
        $crate::each_row! { $form MEMORY races
            p23_split_ring_that_changes_while_it_is_read
            p23_packed_ring_that_changes_while_it_is_read
        }
    };
    (rings $form:ident) => {
        $crate::each_row! { $form ring rings
            e11_changes_of_a_ring_that_runs
            e22_log_address_of_a_ring_beyond_the_log
            e23_logging_without_a_log_and_with_one_that_is_too_short
            e30_owner_and_resets_in_the_middle_of_requests
        }
        $crate::each_row! { $form MEMORY rings
            e12_the_same_message_again_and_again
            e29_without_bit_30_rings_are_enabled_at_once
            e36_messages_of_other_devices
            e37_device_state_is_not_there
            e38_iotlb_messages
            attack_06_call_descriptor_watched_by_very_many
        }
    };
    (memory $form:ident) => {
        $crate::each_row! { $form ring memory
            e15_the_same_memory_again
            e15_memory_that_moved
            e15_memory_that_shrank
            e15_no_memory_at_all
            e20_regions_added_and_removed_wrongly
            e20_the_region_in_use_is_removed
        }
        $crate::each_row! { $form MEMORY memory
            e20_more_regions_than_there_may_be
            e19_address_space_for_many_devices
            attack_09_pages_touched_for_the_first_time
        }
    };
    (lost_memory $form:ident) => {
        $crate::each_row! { $form MEMORY lost_memory
            c16_requests_in_memory_without_pages
            e17_rings_and_tables_in_memory_without_pages
            e17_holes_in_memory_are_zeroes
            e17_memory_that_is_not_sealed_is_refused
            e17_in_flight_record_and_log_without_pages
            e18_memory_that_may_only_be_read_or_is_no_memory_file
            e8_call_descriptor_that_is_full
            e8_kick_descriptor_that_blocks_or_is_full
            e8_call_descriptor_on_which_a_write_waits
        }
        $crate::each_row! { $form FILE lost_memory
            c16_requests_in_memory_without_pages_on_a_file
        }
        $crate::each_row! { $form UNSEALED lost_memory
            e17_memory_cut_off_where_that_is_allowed
        }
    };
}

/// One row after the other: `ring` and `storm` in a queue, whole front-ends by their disk.
#[macro_export]
macro_rules! each_row {
    (tests $how:ident $file:ident $($row:ident)*) => {
        $(
            #[test]
            fn $row() -> anyhow::Result<()> {
                $crate::each_row!(@one $how $file $row).beside_one()
            }
        )*
    };
    (@one $how:ident $file:ident $row:ident) => {
        $crate::misdeeds::Misdeed {
            name: stringify!($row),
            how: $crate::each_row!(@how $how $file $row),
        }
    };
    (@how ring $file:ident $row:ident) => {
        $crate::misdeeds::How::Ring($crate::misdeeds::$file::$row())
    };
    (@how storm $file:ident $row:ident) => {
        $crate::misdeeds::How::Storm($crate::misdeeds::$file::$row())
    };
    (@how $disk:ident $file:ident $row:ident) => {
        $crate::misdeeds::How::FrontEnd(
            $crate::misdeeds::$disk,
            $crate::misdeeds::$file::$row,
        )
    };
    ($all:ident $how:ident $file:ident $($row:ident)*) => {
        $( $all.push($crate::each_row!(@one $how $file $row)); )*
    };
}
