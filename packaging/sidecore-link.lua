-- A dissector of Sidecore's links for Wireshark and tshark (docs/remote-protocol.md): UDP, and EtherType 0x88B5.
-- It shows what every frame's header says, and the records where the session has no keys (security = "none"): which
-- that is, a hello tells, so a capture begins with one, or the preference "plain" is set.
--
--   tshark -X lua_script:sidecore-link.lua -r capture.pcap -Y sidecore
--   Wireshark: put it into the folder of personal Lua plugins (Help, About, Folders)

local link = Proto("sidecore", "Sidecore link")

link.prefs.plain = Pref.bool("Take sealed frames of sessions that are not known for plain", false,
    "Sessions whose hello is not in the capture")

local kinds = { [1] = "hello", [2] = "cookie", [3] = "answer", [4] = "sealed" }
local securities = { [0] = "none", [1] = "Noise" }
local operations = { [0] = "read", [1] = "write", [2] = "flush", [3] = "discard", [4] = "write-zeroes" }
local statuses = { [0] = "ok", [1] = "error", [2] = "unsupported", [3] = "mismatch", [255] = "never seen" }
local intents = { [0] = "look", [1] = "take", [2] = "again" }
local outcomes = { [0] = "kept", "fresh", "looked", "no device", "stale", "busy", "failed", "released", "unsynced" }
local ends = { [0] = "released", "revoked", "unbound", "unsynced" }

local f = {
    version = ProtoField.uint8("sidecore.version", "Version"),
    kind = ProtoField.uint8("sidecore.kind", "Kind", base.DEC, kinds),
    session = ProtoField.uint32("sidecore.session", "Receiver's session", base.HEX),
    counter = ProtoField.uint64("sidecore.counter", "Counter"),
    number = ProtoField.uint32("sidecore.hello.session", "Client's session", base.HEX),
    security = ProtoField.uint8("sidecore.hello.security", "Security", base.DEC, securities),
    message = ProtoField.bytes("sidecore.message", "Message"),
    sealed = ProtoField.bytes("sidecore.sealed", "Sealed"),
    tag = ProtoField.bytes("sidecore.tag", "CRC-64"),
    record = ProtoField.string("sidecore.record", "Record"),
    handle = ProtoField.uint32("sidecore.handle", "Handle", base.HEX),
    slot = ProtoField.uint16("sidecore.slot", "Slot"),
    turn = ProtoField.uint64("sidecore.turn", "Turn"),
    operation = ProtoField.uint8("sidecore.operation", "Operation", base.DEC, operations),
    stable = ProtoField.bool("sidecore.stable", "Stable", 8, nil, 0x01),
    unmap = ProtoField.bool("sidecore.unmap", "Unmap", 8, nil, 0x02),
    offset = ProtoField.uint64("sidecore.offset", "Offset"),
    length = ProtoField.uint32("sidecore.length", "Length"),
    place = ProtoField.uint32("sidecore.place", "Place"),
    checksum = ProtoField.uint64("sidecore.checksum", "Checksum", base.HEX),
    data = ProtoField.bytes("sidecore.data", "Data"),
    status = ProtoField.uint8("sidecore.status", "Status", base.DEC, statuses),
    credit = ProtoField.uint64("sidecore.ack.credit", "Credit"),
    block = ProtoField.uint64("sidecore.ack.block", "Block of 64"),
    mask = ProtoField.uint64("sidecore.ack.mask", "Frames of it", base.HEX),
    device = ProtoField.uint64("sidecore.device", "Device", base.HEX),
    intent = ProtoField.uint8("sidecore.intent", "Intent", base.DEC, intents),
    index = ProtoField.uint16("sidecore.index", "Index"),
    slots = ProtoField.uint16("sidecore.slots", "Slots"),
    slot_bytes = ProtoField.uint32("sidecore.slot_bytes", "Bytes of a slot"),
    binding = ProtoField.uint64("sidecore.binding", "Binding"),
    generation = ProtoField.uint64("sidecore.generation", "Generation"),
    instance = ProtoField.uint64("sidecore.instance", "Instance", base.HEX),
    name = ProtoField.uint64("sidecore.name", "Name of the slots", base.HEX),
    outcome = ProtoField.uint8("sidecore.outcome", "Outcome", base.DEC, outcomes),
    boot = ProtoField.uint64("sidecore.boot", "Boot", base.HEX),
    contents = ProtoField.uint64("sidecore.contents", "Contents", base.HEX),
    image = ProtoField.uint64("sidecore.image", "Image", base.HEX),
    revision = ProtoField.uint64("sidecore.revision", "Revision"),
    size = ProtoField.uint64("sidecore.size", "Size"),
    features = ProtoField.uint32("sidecore.features", "Features", base.HEX),
    removed = ProtoField.uint32("sidecore.removed", "Removed"),
    ended = ProtoField.uint32("sidecore.ended", "End", base.DEC, ends),
    net_number = ProtoField.uint32("sidecore.net.number", "Frame"),
    net_len = ProtoField.uint16("sidecore.net.length", "Its length"),
    net_place = ProtoField.uint16("sidecore.net.place", "Place"),
}
link.fields = f
local wrong = ProtoExpert.new("sidecore.wrong", "Not what the protocol says", expert.group.MALFORMED, expert.severity.ERROR)
link.experts = { wrong }

local HEADER = 16
local CRC = 8

-- Each record: its name, the bytes of its body but for data, and its fields as name, first byte, bytes.
local news = function(at)
    return { "revision", at, 8 }, { "size", at + 8, 8 }, { "features", at + 16, 4 }, { "removed", at + 20, 4 }
end
local records = {
    [1] = { "ack", 8, { "credit", 0, 8 } },
    [2] = { "ping", 0 },
    [3] = { "close", 0 },
    [4] = { "bind", 52, { "device", 0, 8 }, { "intent", 8, 1 }, { "index", 10, 2 }, { "slots", 12, 2 }, { "slot_bytes", 16, 4 },
        { "binding", 20, 8 }, { "generation", 28, 8 }, { "instance", 36, 8 }, { "name", 44, 8 } },
    [5] = { "bound", 72, { "index", 0, 2 }, { "outcome", 2, 1 }, { "binding", 8, 8 }, { "generation", 16, 8 },
        { "boot", 24, 8 }, { "contents", 32, 8 }, { "name", 64, 8 } },
    [6] = { "release", 4, { "handle", 0, 4 } },
    [7] = { "ended", 8, { "handle", 0, 4 }, { "ended", 4, 4 } },
    [8] = { "news", 28, { "handle", 0, 4 }, news(4) },
    [9] = { "part", 40, { "handle", 0, 4 }, { "slot", 4, 2 }, { "operation", 6, 1 }, { "stable", 7, 1 }, { "unmap", 7, 1 },
        { "turn", 8, 8 }, { "offset", 16, 8 }, { "length", 24, 4 }, { "place", 28, 4 }, { "checksum", 32, 8 } },
    [10] = { "recall", 16, { "handle", 0, 4 }, { "slot", 4, 2 }, { "turn", 8, 8 } },
    [11] = { "done", 16, { "handle", 0, 4 }, { "slot", 4, 2 }, { "status", 6, 1 }, { "turn", 8, 8 } },
    [12] = { "piece", 32, { "handle", 0, 4 }, { "slot", 4, 2 }, { "turn", 8, 8 }, { "length", 16, 4 }, { "place", 20, 4 },
        { "checksum", 24, 8 } },
    [13] = { "net", 12, { "handle", 0, 4 }, { "net_number", 4, 4 }, { "net_len", 8, 2 }, { "net_place", 10, 2 } },
    [14] = { "pad", 0 },
}
for field = 1, 4 do
    table.insert(records[5], ({ news(40) })[field])
end
-- What may follow the body: of a disk whose image is known, which one that is.
local has_image = { [5] = 8 }
local has_data = { [1] = true, [9] = true, [12] = true, [13] = true, [14] = true }

-- Between which two ends hellos were without keys.
local plain = {}
function link.init()
    plain = {}
end

local function ends_of(pinfo)
    return tostring(pinfo.src) .. " " .. tostring(pinfo.src_port), tostring(pinfo.dst) .. " " .. tostring(pinfo.dst_port)
end

local function is_plain(pinfo)
    local from, to = ends_of(pinfo)
    local known = plain[from .. " " .. to]
    if known == nil then
        known = plain[to .. " " .. from]
    end
    if known == nil then
        return link.prefs.plain
    end
    return known
end

local function body_of(kind, body, tree)
    local record = records[kind]
    for at = 3, #record do
        local name, first, bytes = record[at][1], record[at][2], record[at][3]
        tree:add_le(f[name], body(first, bytes))
    end
    local rest = body:len() - record[2]
    if kind == 1 then
        for at = 8, body:len() - 16, 16 do
            tree:add_le(f.block, body(at, 8))
            tree:add_le(f.mask, body(at + 8, 8))
        end
    elseif rest > 0 and has_image[kind] then
        tree:add_le(f.image, body(record[2], rest))
    elseif rest > 0 then
        tree:add(f.data, body(record[2], rest))
    end
end

local function records_of(range, tree)
    local at, names = 0, {}
    while at < range:len() do
        if range:len() - at < 4 then
            tree:add_proto_expert_info(wrong, "a record's head is cut off")
            break
        end
        local kind, len = range(at, 1):uint(), range(at + 2, 2):le_uint()
        local record = records[kind]
        local fits = record and at + 4 + len <= range:len() and (len == record[2] or len == record[2] + (has_image[kind] or 0)
            or has_data[kind] and len >= record[2])
        if not fits then
            tree:add_proto_expert_info(wrong, string.format("record %d of %d bytes", kind, len))
            break
        end
        local whole = range(at, 4 + len)
        local branch = tree:add(f.record, whole, record[1])
        if len > 0 then
            body_of(kind, range(at + 4, len), branch)
        end
        names[#names + 1] = record[1]
        at = at + 4 + len
    end
    return table.concat(names, " ")
end

local function is_frame(buffer)
    return buffer:len() >= HEADER and buffer(0, 1):uint() == 1 and kinds[buffer(1, 1):uint()] ~= nil and buffer(2, 2):uint() == 0
end

function link.dissector(buffer, pinfo, root)
    if not is_frame(buffer) then
        return 0
    end
    pinfo.cols.protocol = "SIDECORE"
    local kind = buffer(1, 1):uint()
    local tree = root:add(link, buffer())
    tree:add(f.version, buffer(0, 1))
    tree:add(f.kind, buffer(1, 1))
    tree:add_le(f.session, buffer(4, 4))
    tree:add_le(f.counter, buffer(8, 8))
    local info = kinds[kind]
    local left = buffer:len() - HEADER
    if kind == 1 and left >= 8 then
        tree:add_le(f.number, buffer(HEADER, 4))
        tree:add(f.security, buffer(HEADER + 4, 1))
        local from, to = ends_of(pinfo)
        plain[from .. " " .. to] = buffer(HEADER + 4, 1):uint() == 0
        tree:add(f.message, buffer(HEADER + 8))
    elseif kind == 4 and is_plain(pinfo) and left >= CRC then
        if left > CRC then
            info = records_of(buffer(HEADER, left - CRC), tree)
        end
        tree:add(f.tag, buffer(HEADER + left - CRC, CRC))
    elseif left > 0 then
        tree:add(kind == 4 and f.sealed or f.message, buffer(HEADER))
    end
    pinfo.cols.info = string.format("%s  session %08x  #%s", info, buffer(4, 4):le_uint(), tostring(buffer(8, 8):le_uint64()))
    return buffer:len()
end

-- On the wire itself a frame has its length before it, since short ones are padded.
local wire = Proto("sidecore_wire", "Sidecore link without IP")
function wire.dissector(buffer, pinfo, root)
    if buffer:len() < 2 then
        return 0
    end
    local len = math.min(buffer(0, 2):uint(), buffer:len() - 2)
    return link.dissector(buffer(2, len):tvb(), pinfo, root)
end
DissectorTable.get("ethertype"):add(0x88b5, wire)

-- Whatever the port is.
link:register_heuristic("udp", function(buffer, pinfo, root)
    if not is_frame(buffer) then
        return false
    end
    link.dissector(buffer, pinfo, root)
    return true
end)
