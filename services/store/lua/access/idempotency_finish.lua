-- Keep the answer of a request for later tries.
-- Invariant: the first answer of a key is its answer for ever.
-- KEYS idempotency
-- ARGV token status headers body
-- Reply 1 kept, 0 another try holds the key, or nobody
if redis.call('HGET', idempotency, 'token') ~= token then return 0 end
redis.call('HSET', idempotency, 'status', status, 'headers', headers, 'body', body)
return 1
