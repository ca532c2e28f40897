-- Claim an Idempotency-Key for one try of a request.
-- Invariants: at most one try holds a key, until it ends or its claim lapses. All tries of a key have the same
-- request and the same seed. A call that is repeated because its reply was lost replies the same.
-- KEYS idempotency
-- ARGV request token seed lapse_ms kept_ms
--   request: a digest of method, path, query and body. token: of this try. seed: if this is the first try
-- Reply {'claimed', seed, 0 first try or 1 a later one}, {'other'} another request has the key,
--   {'open', ms until the claim lapses}, {'done', status, headers, body}
local now = now_ms()
local r = hash_fields(idempotency, 'request', 'first', 'token', 'seed', 'lapses', 'status', 'headers', 'body')
if not r.request then
  redis.call('HSET', idempotency, 'request', request, 'first', token, 'token', token, 'seed', seed,
    'lapses', now + lapse_ms)
  redis.call('PEXPIRE', idempotency, kept_ms)
  return {'claimed', seed, 0}
end
if r.request ~= request then return {'other'} end
if r.status then return {'done', r.status, r.headers, r.body} end
-- Redis' clock was set back: no claim lasts longer than `lapse_ms`.
local left = math.min(tonumber(r.lapses) - now, tonumber(lapse_ms))
if r.token ~= token and left > 0 then return {'open', left} end
redis.call('HSET', idempotency, 'token', token, 'lapses', now + lapse_ms)
return {'claimed', r.seed, r.first == token and 0 or 1}
