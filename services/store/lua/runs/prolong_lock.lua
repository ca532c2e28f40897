-- Prolong a learner's lock of its pool.
-- Invariant: a lock that has lapsed, or that another learner holds, stays as it is.
-- KEYS learner
-- ARGV token ttl_ms
-- Reply 1 prolonged, 0 not
if redis.call('GET', learner) == token then return redis.call('PEXPIRE', learner, ttl_ms) end
return 0
