package geneve

import "encoding/binary"

// OptionList is the sequence of options of a Geneve header, as on the wire.
type OptionList []byte

// Option is one Geneve option (RFC 8926, Section 3.5).
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|          Option Class         |      Type     |R|R|R| Length  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Variable-Length Option Data                  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type Option struct {
	Class uint16
	Type  uint8
	Data  []byte // a multiple of 4 bytes, at most 124
}

const (
	optionHeaderLen  = 4
	optionCritical   = 0x80 // RFC 8926, Section 3.5: the high-order bit of the type
	optionLengthMask = 0x1f // RFC 8926, Section 3.5: in units of 4 bytes, without the option header
)

// Critical reports whether an endpoint that does not know the option must drop the packet.
func (o Option) Critical() bool { return o.Type&optionCritical != 0 }

// Next splits off the first option; ok is false at the end of the list and if it is malformed.
// borrowed: option.Data and rest are parts of o.
func (o OptionList) Next() (option Option, rest OptionList, ok bool) {
	if len(o) < optionHeaderLen {
		return Option{}, nil, false
	}
	end := optionHeaderLen + 4*int(o[3]&optionLengthMask)
	if len(o) < end {
		return Option{}, nil, false
	}
	return Option{Class: binary.BigEndian.Uint16(o), Type: o[2], Data: o[optionHeaderLen:end:end]}, o[end:], true
}

// AppendTo appends the option to a list; ok is false if its data does not fit the length field.
func (o Option) AppendTo(list OptionList) (_ OptionList, ok bool) {
	if len(o.Data)%4 != 0 || len(o.Data) > 4*optionLengthMask {
		return list, false
	}
	list = binary.BigEndian.AppendUint16(list, o.Class)
	list = append(list, o.Type, byte(len(o.Data)/4))
	return append(list, o.Data...), true
}

// valid reports whether the options fill the list exactly.
func (o OptionList) valid() bool {
	for len(o) > 0 {
		var ok bool
		if _, o, ok = o.Next(); !ok {
			return false
		}
	}
	return true
}

// critical reports whether any option has its critical bit set.
func (o OptionList) critical() bool {
	for {
		option, rest, ok := o.Next()
		if !ok {
			return false
		}
		if option.Critical() {
			return true
		}
		o = rest
	}
}
