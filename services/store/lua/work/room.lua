-- Whether a group that waits for room may be handed in now: a question without the payload.
-- O(1). KEYS run attempts groups bytes plans   ARGV attempt size min_version lineage
-- Reply 1, also for an attempt that is no longer held, or 0
local run, attempts, groups, bytes, plans = unpack(KEYS)
if not redis.call('ZSCORE', attempts, ARGV[1]) then return 1 end
return has_room(run, groups, bytes, plans, tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]) and 1 or 0
