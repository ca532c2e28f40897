-- Turn a held attempt into a group in the stream.
-- Invariant: only the attempt that holds a draw completes it, once; a lapsed attempt gives its
-- draw back and its work is discarded. Never refused for space: the lease reserved it.
-- `last_finished` is the cursor at the newest completion: what was drawn before it may have been
-- of use, whatever was drawn since has not been yet (see lease). `finished` counts the groups of a
-- batch, and `left_out` those that had no signal meanwhile (see leave_out).
-- KEYS attempts held groups blobs bytes returned order
-- ARGV attempt min_version lineage blob
-- Reply 1 accepted, 0 discarded
local attempts, held, groups, blobs, bytes, returned, order = unpack(KEYS)
local deadline = redis.call('ZSCORE', attempts, ARGV[1])
if not deadline then return 0 end
local draw = let_go(attempts, held, ARGV[1])
if tonumber(deadline) <= now_ms() then
  put_back(returned, draw)
  return 0
end
redis.call('HSET', blobs, position_of(draw), ARGV[4])
redis.call('INCRBY', bytes, #ARGV[4])
redis.call('XADD', groups, '*', 'draw', draw, 'min_version', ARGV[2], 'lineage', ARGV[3], 'bytes', #ARGV[4])
local o = redis.call('HMGET', order, 'position', 'batch')
redis.call('HSET', order, 'last_finished', o[1])
if redis.call('HINCRBY', order, 'finished', 1) >= tonumber(o[2]) then
  redis.call('HSET', order, 'finished', 0, 'left_out', 0)
end
return 1
