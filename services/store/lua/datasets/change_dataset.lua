-- Append to a dataset's record, if the record still is what the caller has read.
-- Invariant: a change is made once, even if its call is repeated because its reply was lost and another caller has
-- changed the record since: `dataset_change`, a key of this change alone, holds the rows that the dataset had after it.
-- KEYS datasets dataset_change
-- ARGV id old new rows kept_ms
-- Reply the rows after the change (made now, or before), 0 the record is another one
local done = redis.call('GET', dataset_change)
if done then return tonumber(done) end
if redis.call('HGET', datasets, id) ~= old then return 0 end
redis.call('HSET', datasets, id, new)
redis.call('SET', dataset_change, rows, 'PX', kept_ms)
return tonumber(rows)
