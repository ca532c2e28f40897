-- Forget an Idempotency-Key whose request was refused.
-- Invariant: only the try that holds a key forgets it. A try whose claim has lapsed leaves the key to its successor.
-- KEYS idempotency
-- ARGV token
-- Reply 1 forgotten, 0 another try holds the key, or nobody
if redis.call('HGET', idempotency, 'token') ~= token then return 0 end
return redis.call('DEL', idempotency)
