-- Change a run's state, and add an event. Any run can be ended: a `run` that is not a hash is replaced, and
-- an `events` that is not a stream is left as it is.
-- Invariants: a final state never changes, and only a final state follows `cancelling`. With `from`, the state
-- changes only from that one. With a fencing token (a learner's call), fenced.
-- KEYS run events
-- ARGV new reason now from is_final token
--   from: '' for any state. is_final: 1 or 0. token: of a learner; '' for other callers
-- Reply 1 changed, 0 not, -1 fenced
local state = redis.pcall('HGET', run, 'state')
if type(state) == 'table' then redis.call('DEL', run) end
if not state and redis.call('EXISTS', run) == 0 then return 0 end
if token ~= '' and fenced(run, token) then return -1 end
if final(state) or (from ~= '' and from ~= state) then return 0 end
if state == 'cancelling' and is_final ~= '1' then return 0 end
also_when_full(run)
redis.call('HSET', run, 'state', new, 'reason', reason)
if new == 'running' then redis.call('HSETNX', run, 'started', now) end
if is_final == '1' then
  redis.call('HSET', run, 'finished', now)
  redis.call('HDEL', run, 'paused_by')
end
redis.pcall('XADD', events, 'MAXLEN', '~', 20000, '*', 'kind', 'state', 'time', now,
  'data', cjson.encode({state = new, reason = reason}))
return 1
