-- Prolong the claim of a try, or end it without an answer.
-- Invariant: only the try that holds a key changes its claim.
-- KEYS idempotency
-- ARGV token lapse_ms
--   lapse_ms: 0 ends the claim: the next try has the same seed
-- Reply 1 prolonged, 0 another try holds the key, or nobody
if redis.call('HGET', idempotency, 'token') ~= token then return 0 end
if lapse_ms == '0' then also_when_full(idempotency) end
redis.call('HSET', idempotency, 'lapses', now_ms() + lapse_ms)
return 1
