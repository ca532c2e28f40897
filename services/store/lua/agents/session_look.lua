-- Ask whether a request has its answer. Changes nothing.
-- KEYS sessions deadlines
-- ARGV attempt index digest
-- Reply {turn or '', failure or '', why the request gets no answer or ''}
local number = redis.call('HGET', sessions, 'asked:' .. index .. ':' .. digest)
local turn = number and redis.call('HGET', sessions, 'turn:' .. index .. ':' .. number)
if turn then return {turn, '', ''} end
local failure = redis.call('HGET', sessions, 'failed:' .. index .. ':' .. digest)
if failure then return {'', failure, ''} end
local s, session = hash_fields(sessions, 'idle', 'state'), session_fields(sessions, index, 'key', 'ended')
if not s.idle or not session.key then return {'', '', 'gone'} end
if s.state or session.ended then return {'', '', s.state or 'ended'} end
local deadline = redis.call('ZSCORE', deadlines, attempt)
return {'', '', deadline and tonumber(deadline) > now_ms() and '' or 'lapsed'}
