-- The leases on a counter: the quota that each instance has taken in advance, in a ledger under a key of its own
-- beside the counter. A separate script: check.lua includes this in place of reservation.lua. Tests compare it with
-- leases/pure_ledger.rs.
--
-- Operation 6: the ledger's key, node (8 bytes), seq, share, wanted, ttl_us, number of leases that the instance closes,
--              for each: seq, unused; then the counter: key, own key, limit
-- Reply:       granted, lasts_us, and the counter
-- Ledger:      a row for each lease: node (8 bytes), seq, granted (0: closed), when it ends, lasts_us,
--              incarnation, when it was charged, mark

local ROW = 46
-- Two rows for each instance that uses the counter much, and one that was closed.
local ROWS_MAX = 1024
local KEPT_MAX_US, LASTS_MIN_US = 120000000, 1000
local WINDOW = 2

-- Returns the valid rows, the quota that they hold, and whether other rows must be deleted. Expired rows must
-- go: a clock that steps back would revive them.
local function read(value)
    local rows, outstanding, stale = {}, 0, false
    for at = 1, #(value or '') - ROW + 1, ROW do
        local row = { node = string.sub(value, at, at + 7) }
        row.seq, row.granted, row.ends_us, row.lasts_us, row.incarnation, row.at_us, row.mark =
            unpack_record('>I4I4I7I4I6I7I6', value, at + 8)
        -- A row far ahead of a clock that stepped back ends soon, so that it locks no instance out.
        local ends_us = min(row.ends_us, now + KEPT_MAX_US)
        stale = stale or ends_us < row.ends_us or ends_us <= now
        row.ends_us = ends_us
        if ends_us > now then
            rows[#rows + 1] = row
            outstanding = outstanding + row.granted
        end
    end
    return rows, outstanding, stale
end

-- Writes the rows. The last row of an instance stays although it is closed: its call may come again.
local function write(key, rows, node, last)
    local packed, ends_us = {}, 0
    for _, row in ipairs(rows) do
        if row.granted > 0 or row.node ~= node or row.seq == last then
            packed[#packed + 1] = row.node .. pack_record('>I4I4I7I4I6I7I6', row.seq, row.granted, row.ends_us,
                row.lasts_us, row.incarnation, row.at_us, row.mark)
            ends_us = max(ends_us, row.ends_us)
        end
    end
    if ends_us == 0 then
        redis.call('DEL', KEYS[key])
        values[key] = false
        return
    end
    values[key] = table.concat(packed)
    redis.call('SET', KEYS[key], values[key], 'PX', string.format('%.0f', ceil((ends_us - now) / 1000)))
end

-- Returns an instance's row of a seq, and the largest seq of its rows; 0 if it has none.
local function row_of(rows, node, seq)
    local found, last = nil, 0
    for _, row in ipairs(rows) do
        if row.node == node then
            found, last = row.seq == seq and row or found, max(last, row.seq)
        end
    end
    return found, last
end

-- Returns the quota to grant: at most half of what is left of the share, so that every instance gets some. The share
-- counts from the unspent quota. It shrinks as the counter empties, and the last tokens go to any instance that asks.
local function grantable(counter, limit, wanted, share, outstanding)
    local free, capacity = limit.module.room(counter, limit), limit.burst or limit.count
    local left = min(mul_div(free + outstanding, share, capacity), share) - outstanding
    return min(wanted, max(0, ceil(left / 2)), free)
end

-- Closes the leases of an instance that program[first] to program[last] list. Returns the quota that they held, and
-- whether a row changed.
local function close_leases(rows, node, first, last, key, counter, limit)
    local freed, written = 0, false
    for i = first, last, 2 do
        local row = row_of(rows, node, program[i])
        if row then
            -- A lease refunds at most its own grant, so a repeated or wrong close cannot refund too much.
            local unused = min(program[i + 1], row.granted)
            if counter and unused > 0 and limit.module.refund(counter, limit, row.incarnation, row.at_us,
                row.granted, row.mark, unused) then
                counter.changed, dirty[key] = true, true
            end
            freed = freed + row.granted
            row.granted, written = 0, true
        end
    end
    return freed, written
end

-- Executes the exchange at program[p]. Returns the index of the next operation.
local function exchange(p)
    local ledger, node, seq, share = program[p + 1], program[p + 2], program[p + 3], program[p + 4]
    local wanted, ttl_us, closes = program[p + 5], program[p + 6], program[p + 7]
    local place = p + 8 + 2 * closes
    local counter, limit, key = counter_at(place)
    local rows, outstanding, stale = read(values[ledger])
    local freed, written = close_leases(rows, node, p + 8, place - 1, key, counter, limit)
    outstanding = outstanding - freed
    local known, last = row_of(rows, node, seq)
    local granted, lasts_us = 0, 0
    -- A call that is sent again gets the grant of the first.
    if known then
        granted, lasts_us = known.granted, known.lasts_us
    elseif seq > last and counter and #rows < ROWS_MAX then
        granted, lasts_us = grantable(counter, limit, wanted, share, outstanding), ttl_us
        if limit.algorithm == WINDOW then
            -- The lease ends with its window: its units must not be spent in the next one.
            lasts_us = min(ttl_us, limit.end_us - now)
        end
        if granted <= 0 or lasts_us < LASTS_MIN_US then
            granted, lasts_us = 0, 0
        else
            limit.module.charge(counter, limit, granted, o)
            local incarnation, mark = limit.module.receipt(counter, o)
            rows[#rows + 1] = {
                node = node, seq = seq, granted = granted, ends_us = now + lasts_us + ttl_us,
                lasts_us = lasts_us, incarnation = incarnation, at_us = now, mark = mark,
            }
            counter.changed, dirty[key] = true, true
            last, written = seq, true
        end
    end
    if stale or written then
        write(ledger, rows, node, last)
    end
    out[o], out[o + 1] = granted, lasts_us
    o = o + 2
    answer(counter, limit, 1, true)
    return place + 3
end

return { [OPEN] = exchange }
