-- Change a run's state and say so in its events. Where a key holds something else than a run, or
-- than events, the state takes its place, or no event is written: any run can be ended.
-- Invariants: a final state never changes, and only a final one follows `cancelling`; where `from`
-- is given, only that state is left; where a fencing token is given (a learner's call), fenced.
-- KEYS run events   ARGV state reason now from('' any) final(1/0) fencing_token('' not a learner)
-- Reply 1 changed, 0 not, -1 fenced
local run, events = unpack(KEYS)
local state = redis.pcall('HGET', run, 'state')
if type(state) == 'table' then redis.call('DEL', run) end
if not state and redis.call('EXISTS', run) == 0 then return 0 end
if ARGV[6] ~= '' and fenced(run, ARGV[6]) then return -1 end
if final(state) or (ARGV[4] ~= '' and ARGV[4] ~= state) then return 0 end
if state == 'cancelling' and ARGV[5] ~= '1' then return 0 end
also_when_full(run)
redis.call('HSET', run, 'state', ARGV[1], 'reason', ARGV[2])
if ARGV[1] == 'running' then redis.call('HSETNX', run, 'started', ARGV[3]) end
if ARGV[5] == '1' then redis.call('HSET', run, 'finished', ARGV[3]) end
redis.pcall('XADD', events, 'MAXLEN', '~', 20000, '*', 'kind', 'state', 'time', ARGV[3],
  'data', cjson.encode({state = ARGV[1], reason = ARGV[2]}))
return 1
