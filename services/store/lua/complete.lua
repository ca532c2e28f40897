-- Turn a held attempt into a group in the stream.
-- Invariant: only the attempt that holds a draw completes it, once; a lapsed attempt gives its
-- draw back and its work is discarded. Never refused for space: the lease reserved it.
-- KEYS attempts held groups blobs bytes returned
-- ARGV attempt min_version lineage blob
-- Reply 1 accepted, 0 discarded
local attempts, held, groups, blobs, bytes, returned = unpack(KEYS)
local attempt = ARGV[1]
local deadline = redis.call('ZSCORE', attempts, attempt)
if not deadline then return 0 end
local draw = string.match(redis.call('HGET', held, attempt), '^(%S+)')
redis.call('ZREM', attempts, attempt)
redis.call('HDEL', held, attempt)
if tonumber(deadline) < now_ms() then
  redis.call('LPUSH', returned, draw)
  return 0
end
redis.call('HSET', blobs, position_of(draw), ARGV[4])
redis.call('INCRBY', bytes, #ARGV[4])
redis.call('XADD', groups, '*', 'draw', draw, 'min_version', ARGV[2], 'lineage', ARGV[3], 'bytes', #ARGV[4])
return 1
