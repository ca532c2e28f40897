-- Register a dataset under its name.
-- Invariant: a name leads to at most one record. A dataset that has the name already stays as it is.
-- KEYS datasets dataset_names
-- ARGV id name record
-- Reply the record that has the name now
local holder = redis.call('HGET', dataset_names, name)
local present = holder and redis.call('HGET', datasets, holder)
if present then return present end
redis.call('HSET', dataset_names, name, id)
redis.call('HSET', datasets, id, record)
return record
