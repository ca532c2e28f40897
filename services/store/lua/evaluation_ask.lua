-- Open an evaluation, in place of one that was open.
-- Invariants: fenced; a call repeated because its reply was lost takes nothing back from workers.
-- KEYS run evaluation returned attempts held results   ARGV fencing_token id json({field: text})
-- Reply 1 open, -1 fenced
local run, evaluation = KEYS[1], KEYS[2]
if fenced(run, ARGV[1]) then return -1 end
if redis.call('HGET', evaluation, 'id') == ARGV[2] then return 1 end
redis.call('DEL', unpack(KEYS, 2))
redis.call('HSET', evaluation, 'id', ARGV[2])
for name, value in pairs(cjson.decode(ARGV[3])) do redis.call('HSET', evaluation, name, value) end
return 1
