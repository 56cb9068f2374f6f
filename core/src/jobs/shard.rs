//! Shards: 64 ranges of lanes.

/// The number of shards.
pub const SHARDS: u8 = 64;

/// Returns the shard of a lane: the top six bits of its id, counted from the lowest id.
pub fn shard_of(lane_id: i64) -> u8 {
    (((lane_id as u64) ^ (1 << 63)) >> 58) as u8
}

/// Returns the lowest and the highest id of a shard's lanes.
pub fn lanes_of(shard: u8) -> (i64, i64) {
    let low = ((u64::from(shard) << 58) ^ (1 << 63)) as i64;
    (low, low | ((1 << 58) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_lies_in_the_range_of_its_shard_and_the_ranges_follow_each_other() {
        let mut next = i64::MIN;
        for shard in 0..SHARDS {
            let (low, high) = lanes_of(shard);
            assert_eq!(low, next);
            assert_eq!((shard_of(low), shard_of(high)), (shard, shard));
            next = high.wrapping_add(1);
        }
        assert_eq!(next, i64::MIN, "the last range ends with the highest id");
    }
}
