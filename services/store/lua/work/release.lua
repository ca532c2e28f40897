-- End attempts and return their tasks. With a `cause`, count a failure of each task, and drop a task that has
-- failed `limit` times for it: a bad row does not circle for ever. A task that has failed loses its partial.
-- Invariant: a task goes to exactly one of {returned, ledger}, and only if the attempt held it.
-- KEYS attempts held returned tries ledger partials bytes
-- ARGV cause detail limit names...
--   cause: '' for none. names: of the attempts
-- Reply the number of tasks that were dropped
local dropped = 0
for _, attempt in ipairs(names) do
  local task = end_attempt(attempts, held, attempt)
  if task and cause == '' then
    return_task(returned, task)
  elseif task then
    forget_partial(partials, bytes, task)
    dropped = dropped + return_or_drop(returned, tries, ledger, task, cause, tonumber(limit), cause, detail)
  end
end
return dropped
