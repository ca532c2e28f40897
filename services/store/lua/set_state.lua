-- Change a run's state and say so in its events.
-- Invariant: a final state never changes; where `from` is given, only those states are left.
-- KEYS run events   ARGV state reason now from(csv or '') final(1/0)   Reply 1 changed, 0 not
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 0 end
if state == 'succeeded' or state == 'failed' or state == 'cancelled' then return 0 end
if ARGV[4] ~= '' and not string.find(',' .. ARGV[4] .. ',', ',' .. state .. ',', 1, true) then
  return 0
end
redis.call('HSET', KEYS[1], 'state', ARGV[1], 'reason', ARGV[2])
if ARGV[1] == 'running' then redis.call('HSETNX', KEYS[1], 'started', ARGV[3]) end
if ARGV[5] == '1' then redis.call('HSET', KEYS[1], 'finished', ARGV[3]) end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 20000, '*', 'kind', 'state', 'time', ARGV[3],
  'data', cjson.encode({state = ARGV[1], reason = ARGV[2]}))
return 1
