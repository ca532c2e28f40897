-- Forget a dataset.
-- Invariant: the name of another dataset, which may have taken it over meanwhile, stays.
-- KEYS records names   ARGV id name   Reply 1 forgotten, 0 not there
local records, names = unpack(KEYS)
if redis.call('HGET', names, ARGV[2]) == ARGV[1] then redis.call('HDEL', names, ARGV[2]) end
return redis.call('HDEL', records, ARGV[1])
