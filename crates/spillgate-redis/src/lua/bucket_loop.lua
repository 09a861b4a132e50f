-- Fast path: decisions over token buckets in steady state, without a counter, function or table for each. A bucket is
-- steady if it has no record yet, or one without receipts under the parameters of the call. No clock may have stepped
-- back. Most decisions are of this kind.
--
-- Takes the operations CHARGE, PEEK and COALESCED over one or several buckets without shadow rules, and OPEN and
-- CLOSE through bucket_reservation.lua. It stops at the first operation that it cannot take, and leaves its
-- index in `at`. The driver decides that operation and all after it. Changed values are recorded, and the
-- driver writes them at the end.

local at, size = program[3], #program
-- The limit that was read last: its index, its parameters, and the shape of its records. The shapes of all limits, by
-- index.
local known, burst, most, n, d, count, high_now, counts, long_us, format, bytes
local shapes = {}
-- For decisions over several keys: the last decision that used a key, by key; and the new values of all keys
-- but the last.
local met, other_keys, other_values, other_lives
-- Created when a call first has a reservation.
local reserved

-- Reads a limit that is not the known one.
-- @fragment use_limit(l) -> is_bucket
local shape = shapes[l]
if not shape and program[l] == 1 and program[l + 1] < NAMED then
    most = program[l + 4]
    -- @inline record_shape(program[l + 1], program[l + 3], program[l + 6], program[l + 7], program[l + 8],
    --     program[l + 9]) -> most, high_now, counts, long_us, format, bytes
    shape = { most, high_now, counts, long_us, format, bytes }
    shapes[l] = shape
end
is_bucket = shape ~= nil
if shape then
    known, burst, n, d, count = l, program[l + 3], program[l + 5], program[l + 6], program[l + 7]
    most, high_now, counts, long_us, format, bytes = unpack(shape)
end
-- @end

-- Records the new value of a key, and the us until it is irrelevant.
-- @fragment note_change(held, text, until_us)
values[held] = text
fresh[held] = until_us
-- @end

-- Keeps the new value of a key aside until the decision is known.
-- @fragment set_aside(key, value, until_us) -> others
if not met then
    met, other_keys, other_values, other_lives = {}, {}, {}, {}
end
others, met[key] = others + 1, at
other_keys[others], other_values[others], other_lives[others] = key, value, until_us
-- @end

while at < size do
    local operation, after = program[at], nil
    if operation == CHARGE or operation == COALESCED or operation == PEEK then
        -- A peek charges for no decision.
        local first, times, start = at + 2, operation == PEEK and 0 or 1, o
        if operation == COALESCED then
            first, times, start = at + 3, program[at + 1], o + 1
        end
        after = first + 4 * program[first - 1]
        if after == first or program[after] ~= 0 then
            break
        end
        -- One pass: each counter is read, evaluated, answered and packed as if all have room for as many decisions as the
        -- counters before it. If that proves wrong, the replies are corrected below, and nothing is written.
        local is_steady, granted, i, held = true, times, start, 0
        local value, length, from, text, until_us, others, charged_to = nil, 0, 1, nil, 0, 0, nil
        for p = first, after - 4, 4 do
            local key, l, cost = program[p], program[p + 2], program[p + 3]
            if l ~= known then
                -- @inline use_limit(l) -> is_steady
            end
            if key ~= held then
                if held > 0 then
                    -- @inline set_aside(held, text, until_us) -> others
                    -- The key has more records than the decision read, or occurs twice: packing it here would
                    -- lose a record.
                    is_steady = is_steady and from > length and met[key] ~= at
                end
                held, value, from, text, until_us = key, values[key], 1, nil, 0
                length = value and #value or 0
            end
            if not is_steady or cost == 0 then
                is_steady = false
                break
            end
            local used, drained = 0, 0
            if from <= length then
                from = from + bytes
                if from > length + 1 then
                    is_steady = false
                    break
                end
                -- @inline read_level(value, from - bytes, format, high_now, most, n, d, count, counts, long_us) ->
                --     used, drained, is_steady
            elseif lost_us > 0 then
                -- After a loss of data a missing bucket counts as used up, unless it would be empty again by now.
                is_steady = d == 1 and now - lost_us >= burst * n
            end
            local room = burst - used
            if room < granted * cost and granted > 0 then
                -- @inline admit(room, cost) -> granted
                charged_to = i
                -- The counters before it were packed for more decisions than fit, so the general path must decide.
                is_steady = is_steady and (granted == 0 or i == start)
            end
            if not is_steady then
                break
            end
            if granted > 0 then
                local record, empty_us
                -- @inline pack_level(used + granted * cost, drained, format, high_now, n, d, count, counts,
                --     long_us) -> record, empty_us
                text = text and text .. record or record
                if empty_us > until_us then
                    until_us = empty_us
                end
                used = used + cost
                out[i] = 1
            else
                out[i] = room >= cost and 1 or 0
            end
            out[i + 1] = used
            out[i + 2] = drained
            out[i + 3] = -1
            i = i + 4
        end
        if not is_steady or from <= length then
            break
        end
        if granted > 0 then
            for other = 1, others do
                -- @inline note_change(other_keys[other], other_values[other], other_lives[other])
            end
            -- @inline note_change(held, text, until_us)
        elseif charged_to then
            -- Denied: the counters before the full one were answered as if charged. Takes their cost off again.
            for place = start + 1, charged_to - 1, 4 do
                out[place] = out[place] - program[first + place - start + 2]
            end
        end
        if operation == COALESCED then
            out[o] = granted
            -- The counters as the decisions after the granted ones find them.
            local counter = start
            for p = first, after - 4, 4 do
                local cost, used = program[p + 3], out[counter + 1]
                if granted > 1 then
                    used = used + (granted - 1) * cost
                end
                local fits = used + cost <= program[program[p + 2] + 3] and 1 or 0
                out[i], out[i + 1], out[i + 2], out[i + 3] = fits, used, out[counter + 2], -1
                counter, i = counter + 4, i + 4
            end
        end
        o = i
        at = after + 1
    elseif operation == OPEN or operation == CLOSE then
        reserved = reserved or (function()
            -- @include bucket_reservation
        end)()
        after = reserved(at)
        if not after then
            break
        end
        at = after
    else
        break
    end
end
