-- Change a dataset's record that still is what the caller has read.
-- Invariant: a call changes the record once, even if it is repeated because its reply was lost and another caller has
-- changed the record since: `dataset_change`, a key of this call alone, records the change for a minute.
-- KEYS datasets dataset_change
-- ARGV id old new
-- Reply 1 changed (now, or by this call before), 0 not
if redis.call('EXISTS', dataset_change) == 1 then return 1 end
if redis.call('HGET', datasets, id) ~= old then return 0 end
redis.call('HSET', datasets, id, new)
redis.call('SET', dataset_change, 1, 'PX', 60000)
return 1
