-- Ask whether the stream takes a finished group now, without sending its payload.
-- O(1).
-- KEYS run attempts groups bytes plans
-- ARGV attempt size min_version lineage
-- Reply 1 (also if the attempt is no longer held) or 0
if not redis.call('ZSCORE', attempts, attempt) then return 1 end
return stream_takes(run, groups, bytes, plans, tonumber(size), tonumber(min_version), lineage) and 1 or 0
