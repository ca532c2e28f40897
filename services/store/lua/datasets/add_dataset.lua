-- Register a dataset under its name.
-- Invariant: a name leads to at most one record, and what holds it already stays as it is.
-- KEYS records names   ARGV id name record   Reply the record that holds the name now
local records, names = unpack(KEYS)
local holder = redis.call('HGET', names, ARGV[2])
local held = holder and redis.call('HGET', records, holder)
if held then return held end
redis.call('HSET', names, ARGV[2], ARGV[1])
redis.call('HSET', records, ARGV[1], ARGV[3])
return ARGV[3]
