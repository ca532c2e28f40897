-- Change a field of a hash only while it holds what the caller read.
-- Invariant: a call changes it once, also where it is repeated because its reply was lost and
-- another caller has changed it since: `done`, a key of this call alone, records it for a minute.
-- KEYS hash done   ARGV field old new   Reply 1 changed (by this call, or by it before), 0 not
if redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('SET', KEYS[2], 1, 'PX', 60000)
return 1
