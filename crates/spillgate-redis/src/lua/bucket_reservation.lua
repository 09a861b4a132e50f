-- Fast path: reservations of one token bucket that are opened, or ended at their estimate or below it. The
-- bucket has no record yet, or one that was written under the parameters of the call. Most reservations are of this
-- kind. Values and replies are those of reservation.lua.

-- @include reservation_words
-- The bytes of the record of a one-counter reservation, without the caller's text.
local RECORD = 57
-- The head of a bucket's record with receipts.
local RECEIPTS = 6 * 256

-- Executes OPEN or CLOSE at program[p] if it is of this kind. Returns the index of the next operation, or nothing.
return function(p)
    local program, out = program, out
    local is_open, key, l, cost = program[p] == OPEN, program[p + 6], program[p + 8], program[p + 9]
    local record = values[program[p + 1]]
    if program[p + 5] ~= 1 or is_open and (record or program[p + 10] ~= 0 or cost == 0) then
        return
    end
    local unused, opened_us, charged, marked = 0, now, 0, 0
    if not is_open then
        if program[p + 2] ~= ENDS or not record or #record < RECORD or program[l] ~= 1 then
            return
        end
        local actual, state, ends_us = cost, nil, nil
        -- @inline unpack_head(record) -> state, opened_us, ends_us
        -- @inline unpack_charge(record, 1) -> charged, marked, cost
        if state ~= 0 or now >= ends_us or byte(record, HEAD) ~= 1 then
            return
        end
        if actual ~= AS_CHARGED then
            unused = cost - actual
        end
        -- A final charge above the estimate is forced, which the general path does.
        if unused < 0 then
            return
        end
    end

    local granted, used, drained = 1, 0, 0
    if is_open or unused > 0 then
        local is_steady = true
        if l ~= known then
            -- @inline use_limit(l) -> is_steady
        end
        local parts = is_steady and (now - opened_us) * d or 0
        if not is_steady or lost_us > 0 or parts >= 9007199254740992 then
            return
        end
        local value, incarnation, mark, lowest, is_changed = values[key], 0, 0, 0, false
        local high, period_us = program[l + 1] * 4096 + RECEIPTS + now_high, program[l + 8]
        local long_format, long_bytes
        -- @inline record_format(true) -> long_format, long_bytes
        if value then
            if #value == long_bytes + 16 then
                -- @inline read_level(value, 1, long_format, high, most, n, d, count, 0, period_us) -> used, drained,
                --     is_steady
                -- @inline unpack_receipts(value, long_bytes + 1) -> incarnation, mark, lowest
            elseif #value == bytes then
                -- @inline read_level(value, 1, format, high_now, most, n, d, count, counts, long_us) -> used, drained,
                --     is_steady
            else
                return
            end
            if not is_steady then
                return
            elseif used == 0 then
                incarnation = 0
            end
        end
        if is_open then
            -- @inline admit(burst - used, cost) -> granted
            if granted > 0 then
                -- @inline note_low(used, drained) -> lowest
                used, is_changed = used + cost, true
                -- @inline begin_receipt(used, drained) -> incarnation, mark, lowest
                charged, marked = incarnation, mark
            end
        elseif charged > 0 and charged == incarnation and parts >= 0 then
            local tokens, rest, back, back_rest
            -- @inline drain(parts, n) -> tokens, rest
            -- @inline returnable(cost, tokens, rest, unused, marked, mark, lowest) -> back, back_rest
            -- @inline take_out(n) -> used, drained, mark, back, back_rest
            is_changed = back > 0
        end
        if is_changed then
            local text, until_us = false, 0
            if used > 0 then
                local receipts
                -- @inline pack_level(used, drained, long_format, high, n, d, count, 0, period_us) -> text, until_us
                -- @inline pack_receipts(incarnation, mark, lowest) -> receipts
                text = text .. receipts
            end
            -- @inline note_change(key, text, until_us)
        end
    end

    if is_open then
        if granted > 0 then
            local charges
            -- @inline pack_charge(charged, marked, cost) -> charges
            -- @inline pack_open(program[p + 2], program[p + 3], 1, charges, program[p + 4]) -> record
            -- @inline write_record(program[p + 1], record, program[p + 2])
        end
        out[o], out[o + 1], out[o + 2], out[o + 3] = granted > 0 and NEW or REFUSED, granted, used, drained
        out[o + 4], out[o + 5], out[o + 6] = -1, charged, marked
        o = o + 7
        return p + 11
    end

    -- @inline end_record(program[p + 1], record, program[p + 3])
    out[o] = DONE
    o = o + 1
    return p + 10
end
