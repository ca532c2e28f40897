-- Delete a dataset's record and its name.
-- Invariant: if another dataset has taken over the name meanwhile, the name stays.
-- KEYS datasets dataset_names
-- ARGV id name
-- Reply 1 deleted, 0 there was no such dataset
if redis.call('HGET', dataset_names, name) == id then redis.call('HDEL', dataset_names, name) end
return redis.call('HDEL', datasets, id)
