-- Delete a key that still has the caller's value.
-- KEYS ...
-- ARGV value
-- Reply 1 deleted, 0 not
if redis.call('GET', KEYS[1]) == value then return redis.call('DEL', KEYS[1]) end
return 0
