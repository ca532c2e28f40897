-- The one open evaluation of a run, and those that wait.

-- Open the evaluation that has waited longest, unless an evaluation is open. It has all its rows to answer, or
-- the rows `left` of its request.
local function open_evaluation(evaluation, queue, requests, returned)
  if redis.call('EXISTS', evaluation) == 1 then return end
  local id = redis.call('LPOP', queue)
  if not id then return end
  local request = cjson.decode(redis.call('HGET', requests, id))
  local rows, next_row, answered = request.set.rows, 0, 0
  if type(request.left) == 'table' then
    for _, row in ipairs(request.left) do redis.call('RPUSH', returned, row) end
    next_row, answered = rows, rows - #request.left
  end
  redis.call('HSET', evaluation, 'id', id, 'version', request.version, 'rows', rows, 'next', next_row,
    'answered', answered, 'opened', now_ms())
end

-- End the open evaluation, and open the next. Its answers and its request stay until it is closed.
local function end_evaluation(evaluation, queue, requests, ended, returned, attempts, held, id, state, reason)
  local answered = redis.call('HGET', evaluation, 'answered')
  redis.call('HSET', ended, id, cjson.encode({state = state, reason = reason, answered = tonumber(answered)}))
  redis.call('DEL', evaluation, returned, attempts, held)
  open_evaluation(evaluation, queue, requests, returned)
end
