-- Ask whether the stream takes a finished group now, without sending its payload.
-- O(1).
-- KEYS run attempts groups bytes plans
-- ARGV attempt size min_version lineage
-- Reply 1 (also if the attempt is no longer held) or 0
if not redis.call('ZSCORE', attempts, ARGV[1]) then return 1 end
return stream_takes(run, groups, bytes, plans, tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]) and 1 or 0
