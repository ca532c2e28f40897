-- Ask whether a request has its answer. Changes nothing.
-- KEYS sessions deadlines
-- ARGV attempt index digest
-- Reply {turn or '', failure or '', why the request gets no answer or ''}
local attempt, index, digest = unpack(ARGV)
local s = redis.call('HMGET', sessions, 'asked:' .. index .. ':' .. digest, 'failed:' .. index .. ':' .. digest,
  'idle', 'state', 'ended:' .. index, 'key:' .. index)
local turn = s[1] and redis.call('HGET', sessions, 'turn:' .. index .. ':' .. s[1])
if turn then return {turn, '', ''} end
if s[2] then return {'', s[2], ''} end
if not s[3] or not s[6] then return {'', '', 'gone'} end
if s[4] or s[5] then return {'', '', s[4] or 'ended'} end
local deadline = redis.call('ZSCORE', deadlines, attempt)
return {'', '', deadline and tonumber(deadline) > now_ms() and '' or 'lapsed'}
