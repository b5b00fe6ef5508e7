package geneve

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"culvert/integration/need"
)

// join makes one byte slice of annotated fragments.
func join(fragments ...[]byte) []byte { return slices.Concat(fragments...) }

func TestHeader(t *testing.T) {
	payload := []byte{0xde, 0xad}
	tests := []struct {
		name   string
		wire   []byte
		header Header
		oneWay bool // decodes, but is not what AppendTo writes
	}{
		{"Ethernet, no options", join(
			[]byte{0x00, 0x00},       // version 0, no options, no flags
			[]byte{0x65, 0x58},       // Ethernet
			[]byte{0x00, 0x00, 0x01}, // VNI
			[]byte{0x00},             // reserved
		), Header{VNI: 1, Protocol: 0x6558}, false},
		{"IPv4, VNI 0", join([]byte{0x00, 0x00}, []byte{0x08, 0x00}, []byte{0, 0, 0}, []byte{0}),
			Header{Protocol: 0x0800}, false},
		{"IPv6, largest VNI", join([]byte{0x00, 0x00}, []byte{0x86, 0xdd}, []byte{0xff, 0xff, 0xff}, []byte{0}),
			Header{VNI: MaxVNI, Protocol: 0x86dd}, false},
		{"control", join([]byte{0x00, 0x80}, []byte{0x65, 0x58}, []byte{0x12, 0x34, 0x56}, []byte{0}),
			Header{VNI: 0x123456, Protocol: 0x6558, Control: true}, false},
		{"critical flag alone", join([]byte{0x00, 0x40}, []byte{0x65, 0x58}, []byte{0, 0, 7}, []byte{0}),
			Header{VNI: 7, Protocol: 0x6558, Critical: true}, false},
		{"reserved bits set", join([]byte{0x00, 0x3f}, []byte{0x65, 0x58}, []byte{0, 0, 7}, []byte{0xff}),
			Header{VNI: 7, Protocol: 0x6558}, true},
		{"two options", join(
			[]byte{0x05, 0x40},             // 5 × 4 bytes of options, critical
			[]byte{0x65, 0x58},             // Ethernet
			[]byte{0x00, 0x01, 0x00},       // VNI 256
			[]byte{0x00},                   // reserved
			[]byte{0x01, 0x02, 0x03, 0x00}, // class 0x0102, type 3, no data
			[]byte{0xff, 0xff, 0x81, 0x03}, // class 0xffff, type 0x81 (critical), 3 × 4 bytes of data
			[]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
		), Header{VNI: 256, Protocol: 0x6558, Critical: true, Options: OptionList{
			0x01, 0x02, 0x03, 0x00, 0xff, 0xff, 0x81, 0x03, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}, false},
		{"critical option under a clear flag", join(
			[]byte{0x01, 0x00}, []byte{0x65, 0x58}, []byte{0, 0, 7}, []byte{0},
			[]byte{0x00, 0x01, 0x80, 0x00},
		), Header{VNI: 7, Protocol: 0x6558, Options: OptionList{0x00, 0x01, 0x80, 0x00}}, true},
		{"reserved bits in an option", join(
			[]byte{0x01, 0x00}, []byte{0x65, 0x58}, []byte{0, 0, 7}, []byte{0},
			[]byte{0x00, 0x01, 0x05, 0xe0},
		), Header{VNI: 7, Protocol: 0x6558, Options: OptionList{0x00, 0x01, 0x05, 0xe0}}, false},
		{"252 bytes of options", join(
			[]byte{0x3f, 0x00}, []byte{0x65, 0x58}, []byte{0, 0, 7}, []byte{0},
			bytes.Repeat([]byte{0x00, 0x01, 0x05, 0x00}, 63),
		), Header{VNI: 7, Protocol: 0x6558, Options: bytes.Repeat([]byte{0x00, 0x01, 0x05, 0x00}, 63)}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, rest, r := ParseHeader(join(tt.wire, payload))
			if r != Accepted || !reflect.DeepEqual(h, tt.header) || !bytes.Equal(rest, payload) {
				t.Fatalf("ParseHeader = %+v, %x, %v; want %+v, %x", h, rest, r, tt.header, payload)
			}
			if !tt.oneWay {
				if b, err := tt.header.AppendTo(nil); err != nil || !bytes.Equal(b, tt.wire) {
					t.Errorf("AppendTo = %x, %v; want %x", b, err, tt.wire)
				}
			}
			for n := range tt.wire {
				if h, _, r := ParseHeader(tt.wire[:n]); r != Truncated || !reflect.DeepEqual(h, Header{}) {
					t.Errorf("first %d bytes: %+v, %v; want truncated", n, h, r)
				}
			}
		})
	}
}

func TestHeaderInvalid(t *testing.T) {
	tests := []struct {
		name string
		wire []byte
		want Reason
	}{
		{"version 1", []byte{0x40, 0, 0x65, 0x58, 0, 0, 1, 0}, BadVersion},
		{"version 3 with options", []byte{0xc1, 0, 0x65, 0x58, 0, 0, 1, 0, 0, 0, 0, 0}, BadVersion},
		{"option longer than the list", join([]byte{0x01, 0, 0x65, 0x58, 0, 0, 1, 0}, []byte{0, 1, 0, 1},
			[]byte{1, 2, 3, 4}), BadOptions},
		{"second option longer than the list", join([]byte{0x02, 0, 0x65, 0x58, 0, 0, 1, 0}, []byte{0, 1, 0, 0},
			[]byte{0, 1, 0, 31}), BadOptions},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if h, _, r := ParseHeader(tt.wire); r != tt.want || !reflect.DeepEqual(h, Header{}) {
				t.Errorf("ParseHeader = %+v, %v; want %v", h, r, tt.want)
			}
		})
	}
	for _, h := range []Header{
		{VNI: MaxVNI + 1},
		{Options: make(OptionList, 256)},
		{Options: OptionList{0, 0, 0}},
		{Options: OptionList{0, 0, 0, 1}},
	} {
		if b, err := h.AppendTo([]byte{1}); err == nil || !bytes.Equal(b, []byte{1}) {
			t.Errorf("AppendTo of %+v = %x, %v; want an error", h, b, err)
		}
	}
}

func TestOptions(t *testing.T) {
	want := []Option{
		{Class: 0x0102, Type: 3, Data: []byte{}},
		{Class: 0xffff, Type: 0x81, Data: []byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{Class: 0, Type: 0, Data: make([]byte, 124)},
	}
	var list OptionList
	for _, o := range want {
		var ok bool
		if list, ok = o.AppendTo(list); !ok {
			t.Fatalf("AppendTo of %+v failed", o)
		}
	}
	var got []Option
	for rest := list; ; {
		o, r, ok := rest.Next()
		if !ok {
			break
		}
		got, rest = append(got, o), r
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got[0].Critical() || !got[1].Critical() || !list.critical() || list[:4].critical() {
		t.Error("critical bits wrong")
	}
	for _, size := range []int{1, 3, 128} {
		if _, ok := (Option{Data: make([]byte, size)}).AppendTo(nil); ok {
			t.Errorf("AppendTo took %d bytes of data", size)
		}
	}
}

func TestVXLAN(t *testing.T) {
	wire := join(
		[]byte{0x08},             // I flag
		[]byte{0x00, 0x00, 0x00}, // reserved
		[]byte{0xab, 0xcd, 0xef}, // VNI
		[]byte{0x00},             // reserved
	)
	vni, payload, r := ParseVXLAN(join(wire, []byte{1, 2}))
	if vni != 0xabcdef || !bytes.Equal(payload, []byte{1, 2}) || r != Accepted {
		t.Errorf("ParseVXLAN = %#x, %x, %v", vni, payload, r)
	}
	if b, err := AppendVXLAN(nil, 0xabcdef); err != nil || !bytes.Equal(b, wire) {
		t.Errorf("AppendVXLAN = %x, %v; want %x", b, err, wire)
	}
	if _, err := AppendVXLAN(nil, MaxVNI+1); err == nil {
		t.Error("AppendVXLAN took a VNI of 25 bits")
	}
	if vni, _, r := ParseVXLAN([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 5, 0xff}); vni != 5 || r != Accepted {
		t.Errorf("reserved bits not ignored: %v, %v", vni, r)
	}
	if _, _, r := ParseVXLAN([]byte{0xf7, 0, 0, 0, 0, 0, 5, 0}); r != BadFlags {
		t.Errorf("without I flag: %v, want bad-flags", r)
	}
	for n := range wire {
		if _, _, r := ParseVXLAN(wire[:n]); r != Truncated {
			t.Errorf("first %d bytes: %v, want truncated", n, r)
		}
	}
}

func TestReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range NumReasons + 1 {
		name := r.String()
		if name == "" || seen[name] {
			t.Errorf("reason %d has the name %q", r, name)
		}
		seen[name] = true
	}
}

// FuzzHeader checks that parsing never fails to end in a verdict, and that encoding what was parsed
// gives the same bytes, save the reserved bits and a C flag that the options demand.
func FuzzHeader(f *testing.F) {
	f.Add([]byte{0x00, 0x00, 0x65, 0x58, 0, 0, 1, 0, 0xde, 0xad})
	f.Add([]byte{0x02, 0x40, 0x65, 0x58, 0, 0, 1, 0, 0xff, 0xff, 0x81, 0x01, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, payload, r := ParseHeader(b)
		if r != Accepted {
			if !reflect.DeepEqual(h, Header{}) || payload != nil {
				t.Fatalf("%v with a result: %+v, %x", r, h, payload)
			}
			return
		}
		again, err := h.AppendTo(nil)
		if err != nil {
			t.Fatalf("AppendTo of %+v: %v", h, err)
		}
		want := bytes.Clone(b[:len(b)-len(payload)])
		want[1] &= controlFlag | critFlag
		want[7] = 0
		if h.Options.critical() {
			want[1] |= critFlag
		}
		if !bytes.Equal(again, want) {
			t.Errorf("parsed %x, encoded %x", want, again)
		}
	})
}

// FuzzVXLAN does the same for the VXLAN header.
func FuzzVXLAN(f *testing.F) {
	f.Add([]byte{0x08, 0, 0, 0, 0, 0, 1, 0, 0xde, 0xad})
	f.Add([]byte{0x00, 0, 0x65, 0x58, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		vni, payload, r := ParseVXLAN(b)
		if r != Accepted {
			return
		}
		again, err := AppendVXLAN(nil, vni)
		need.NoError(t, err)
		want := append([]byte{0x08, 0, 0, 0}, b[4], b[5], b[6], 0)
		if !bytes.Equal(again, want) || len(payload) != len(b)-headerLen {
			t.Errorf("parsed %x, encoded %x, payload of %d bytes", want, again, len(payload))
		}
	})
}
