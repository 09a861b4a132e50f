-- Decisions over token buckets in their steady state whose tokens are whole us, over one or several, and crowds
-- over one: no record yet, or one that was written under the very numbers that are asked for. Hot calls
-- hold nothing else, so this is written out, without a function or a table for each, and gives the same answers
-- as steady.lua. What that takes, or reserved.lua, is handed to it.
--
-- They are taken in order, up to the first that is of none of these kinds, at `at`.

local at, size = program[3], #program
-- The limit that was read last, and its numbers; whether its records are long ones, the bytes of one, and what
-- its tokens in use stay below.
local known, burst, most, n, counts, head, is_long, bytes, below
local unpack_record, pack_record = struct.unpack, struct.pack
-- The instant's 48 low bits, and what is above them.
local now_low = now % 281474976710656
local now_high = (now - now_low) / 281474976710656

-- Made when a call first holds anything but single buckets.
local whole, note_change
-- What records of a limit begin with but for the instant, and its numbers, by where it begins: burst, the most that
-- a record holds, n, count. False for one whose tokens are not whole us, or that needs more than a short record.
local wholes
-- Of decisions over several keys: which of them met a key last; and what is left of all keys but the last of one,
-- and for how long.
local met, left_keys, left, left_us
local reserved, steady

while at < size do
    local operation, p, times = program[at], at, 1
    if operation == 8 then
        p, times = at + 1, program[at + 1]
    end
    local l, cost = program[p + 4], program[p + 5]
    if (operation == 0 or operation == 8) and program[p + 1] == 1 and program[p + 6] == 0 and program[l + 6] == 1
        and cost > 0 then
        local key = program[p + 2]
        if l ~= known then
            if program[l] ~= 1 or program[l + 1] >= 15 then
                break
            end
            known, burst, most, n = l, program[l + 3], program[l + 4], program[l + 5]
            is_long = program[l + 9] == 0 or program[l + 7] >= 65536
            if is_long then
                head, counts, bytes, below = program[l + 1] * 4096 + 256, 0, 26, 4294967296
            else
                most = most < 65536 and most or 65535
                head, counts = program[l + 1] * 4096 + program[l + 9] * 16, program[l + 7] * 65536
                bytes, below = 12, 65536
            end
        end
        local used, drained = 0, 0
        local value = values[key]
        if not value then
            if lost_us > 0 and now - lost_us < burst * n then
                break
            end
        else
            if #value ~= bytes then
                break
            end
            local high, low, used_then
            if is_long then
                local part, period_us, count
                high, low, part, period_us, count, used_then = unpack_record('>I2I6I4I6I4I4', value)
                if part > 0 or period_us ~= program[l + 8] or count ~= program[l + 7] then
                    break
                end
            else
                high, low, used_then = unpack_record('>I2I6I4', value)
            end
            -- The limit's part of both is taken off: what is left of another limit's is out of bounds.
            high, used_then = high - head, used_then - counts
            local elapsed = now_low - low
            if high ~= now_high then
                elapsed = elapsed + (now_high - high) * 281474976710656
            end
            if high < 0 or high > 15 or elapsed < 0 or used_then < 0 or used_then > most then
                break
            end
            local rest = elapsed % n
            local left = used_then - (elapsed - rest) / n
            if left > 0 then
                used, drained = left, rest
            end
        end
        local would, granted = used + cost, 0
        if would >= below then
            break
        end
        if would <= burst then
            granted = 1
            if times > 1 then
                granted = floor((burst - used) / cost)
                granted = granted < times and granted or times
            end
            local charged = used + granted * cost
            if charged >= below then
                break
            end
            local low, high = now_low - drained, head + now_high
            if low < 0 then
                low, high = low + 281474976710656, high - 1
            end
            if is_long then
                values[key] = pack_record('>I2I6I4I6I4I4', high, low, 0, program[l + 8], program[l + 7], charged)
            else
                values[key] = pack_record('>I2I6I4', high, low, counts + charged)
            end
            if not fresh[key] then
                changed = changed + 1
                changes[changed] = key
            end
            fresh[key] = charged * n - drained
            used = would
        end
        if operation == 8 then
            out[o] = granted
            o = o + 1
        end
        out[o], out[o + 1], out[o + 2], out[o + 3] = granted > 0 and 1 or 0, used, drained, -1
        if operation == 8 then
            o = o + 4
            if granted > 1 then
                used = used + (granted - 1) * cost
            end
            out[o], out[o + 1], out[o + 2], out[o + 3] = used + cost <= burst and 1 or 0, used, drained, -1
        end
        o, at = o + 4, p + 7
    elseif program[l] ~= 1 and operation ~= 6 and operation ~= 7 then
        break
    else
        local is_of_reservation = operation == 6 or operation == 7
        local is_of_several = operation == 0 and program[at + 1] > 1
        -- What a key holds now, and how long until that is irrelevant.
        note_change = note_change or function(key, value, longest_us)
            if not fresh[key] then
                changed = changed + 1
                changes[changed] = key
            end
            values[key], fresh[key] = value, longest_us
        end
        if not whole and (is_of_several or is_of_reservation) then
            wholes, met, left_keys, left, left_us = {}, {}, {}, {}, {}
            whole = function(l)
                local is_whole = program[l] == 1 and program[l + 6] == 1 and program[l + 9] > 0
                    and program[l + 7] < 65536 and program[l + 1] < 15 and program[l + 3] < 65536
                wholes[l] = is_whole and {
                    program[l + 1] * 4096 + program[l + 9] * 16, program[l + 3], min(program[l + 4], 65535),
                    program[l + 5], program[l + 7] * 65536,
                }
                return wholes[l]
            end
        end
        local after
        if is_of_reservation then
            reserved = reserved or (function()
                -- @include reserved
            end)()
            after = reserved(at)
        elseif is_of_several then
            -- Each tier is answered, and packed, as if all had room.
            local last = at + 4 * program[at + 1] - 2
            after = last + 5
            local fits, i, held, others = true, o, 0, 0
            local value, length, from, text, longest_us
            for q = at + 2, last, 4 do
                local key, limit, cost = program[q], wholes[program[q + 2]], program[q + 3]
                if limit == nil then
                    limit = whole(program[q + 2])
                end
                if not limit or cost == 0 then
                    after = nil
                    break
                end
                if key == held then
                    from = from + 12
                else
                    if held > 0 then
                        if others == 0 then
                            met[held] = at
                        end
                        if met[key] == at or from + 12 <= length then
                            after = nil
                            break
                        end
                        others, met[key] = others + 1, at
                        left_keys[others], left[others], left_us[others] = held, text, longest_us
                    end
                    held, value, from, text, longest_us = key, values[key], 1, nil, 0
                    length = value and #value or 0
                end
                local n, used, drained = limit[4], 0, 0
                if from + 11 <= length then
                    local high, low, used_then = unpack_record('>I2I6I4', value, from)
                    used = used_then - limit[5]
                    local elapsed = now_low - low
                    if high - limit[1] ~= now_high or elapsed < 0 or used < 0 or used > limit[3] then
                        after = nil
                        break
                    end
                    drained = elapsed % n
                    used = used - (elapsed - drained) / n
                    if used <= 0 then
                        used, drained = 0, 0
                    end
                elseif from <= length or lost_us > 0 then
                    after = nil
                    break
                end
                used = used + cost
                if used > limit[2] then
                    out[i], fits = 0, false
                else
                    out[i] = 1
                    local low, high = now_low - drained, limit[1] + now_high
                    if low < 0 then
                        low, high = low + 281474976710656, high - 1
                    end
                    local packed = pack_record('>I2I6I4', high, low, limit[5] + used)
                    text = text and text .. packed or packed
                    local until_us = used * n - drained
                    if until_us > longest_us then
                        longest_us = until_us
                    end
                end
                out[i + 1], out[i + 2], out[i + 3] = used, drained, -1
                i = i + 4
            end
            if not after or from + 12 <= length or program[after - 1] ~= 0 then
                after = nil
            else
                if not fits then
                    for q = at + 2, last, 4 do
                        local place = o + q - at - 1
                        out[place] = out[place] - program[q + 3]
                    end
                else
                    for other = 1, others do
                        note_change(left_keys[other], left[other], left_us[other])
                    end
                    note_change(held, text, longest_us)
                end
                o = i
            end
        end
        if not after and not is_of_reservation then
            steady = steady or (function()
                -- @include token_bucket/steady
            end)()
            after = steady(at)
        end
        if not after then
            break
        end
        at = after
    end
end
