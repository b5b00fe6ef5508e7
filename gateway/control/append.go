package control

import (
	"encoding/json"
	"net/netip"
	"strconv"
)

// appendJSON appends the same JSON as encoding/json for c. A list may have a million connections:
// encoding/json takes four times as long and allocates for each address, and packets wait while Go
// collects the garbage.
func (c *Connection) appendJSON(b []byte) []byte {
	b = strconv.AppendUint(append(b, `{"id":`...), c.ID, 10)
	b = appendString(append(b, `,"protocol":`...), c.Protocol)
	b = appendString(append(b, `,"state":`...), c.State)
	b = appendString(append(b, `,"from":`...), c.From)
	b = appendString(append(b, `,"to":`...), c.To)
	b = c.Original.appendJSON(append(b, `,"original":`...))
	b = c.Reply.appendJSON(append(b, `,"reply":`...))
	for i, use := range c.Uses {
		if i == 0 {
			b = append(b, `,"uses":[`...)
		} else {
			b = append(b, ',')
		}
		b = appendString(b, use)
	}
	if len(c.Uses) > 0 {
		b = append(b, ']')
	}
	if c.Refused != "" {
		b = appendString(append(b, `,"refused":`...), c.Refused)
	}
	if c.RefusedReply != "" {
		b = appendString(append(b, `,"refusedReply":`...), c.RefusedReply)
	}
	b = strconv.AppendBool(append(b, `,"replied":`...), c.Replied)
	if c.Mark != 0 {
		b = strconv.AppendUint(append(b, `,"mark":`...), uint64(c.Mark), 10)
	}
	b = strconv.AppendFloat(append(b, `,"idleSeconds":`...), c.IdleSeconds, 'f', -1, 64)
	b = strconv.AppendFloat(append(b, `,"leftSeconds":`...), c.LeftSeconds, 'f', -1, 64)
	b = c.Sent.appendJSON(append(b, `,"sent":`...))
	b = c.Received.appendJSON(append(b, `,"received":`...))
	return append(b, '}')
}

func (t *Tuple) appendJSON(b []byte) []byte {
	b = appendAddr(append(b, `{"source":`...), t.Source)
	b = strconv.AppendUint(append(b, `,"sourcePort":`...), uint64(t.SourcePort), 10)
	b = appendAddr(append(b, `,"destination":`...), t.Destination)
	b = strconv.AppendUint(append(b, `,"destinationPort":`...), uint64(t.DestinationPort), 10)
	return append(b, '}')
}

func (v *Volume) appendJSON(b []byte) []byte {
	b = strconv.AppendUint(append(b, `{"packets":`...), v.Packets, 10)
	b = strconv.AppendUint(append(b, `,"bytes":`...), v.Bytes, 10)
	return append(b, '}')
}

// appendAddr appends an address without a zone, which might need escapes. The zero Addr becomes "".
func appendAddr(b []byte, a netip.Addr) []byte {
	b = append(b, '"')
	if a.IsValid() {
		b = a.AppendTo(b)
	}
	return append(b, '"')
}

// appendString uses encoding/json for a string that needs escapes.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			text, _ := json.Marshal(s) // a string never fails
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
