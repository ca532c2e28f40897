-- Whether a request has its answer. Changes nothing.
-- KEYS sessions attempts   ARGV attempt index digest
-- Reply {turn or '', failure or '', why it gets none or ''}
local sessions, attempts, index, digest = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local s = redis.call('HMGET', sessions, 'asked:' .. index .. ':' .. digest, 'failed:' .. index .. ':' .. digest,
  'idle', 'state', 'ended:' .. index, 'key:' .. index)
local turn = s[1] and redis.call('HGET', sessions, 'turn:' .. index .. ':' .. s[1])
if turn then return {turn, '', ''} end
if s[2] then return {'', s[2], ''} end
if not s[3] or not s[6] then return {'', '', 'gone'} end
if s[4] or s[5] then return {'', '', s[4] or 'ended'} end
local deadline = redis.call('ZSCORE', attempts, ARGV[1])
return {'', '', deadline and tonumber(deadline) > now_ms() and '' or 'lapsed'}
