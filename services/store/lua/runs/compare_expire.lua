-- Prolong a lock only while it is the caller's.   KEYS key   ARGV value ttl_ms
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
