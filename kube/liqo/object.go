package liqo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	strictjson "sigs.k8s.io/json"

	"culvert/kube/objects"
)

// The kinds of resources that a gateway watches, all of group networking.liqo.io.
const (
	KindFirewall  = "FirewallConfiguration"
	KindRoute     = "RouteConfiguration"
	KindTunnel    = "GeneveTunnel"
	KindFabric    = "InternalFabric"
	KindNode      = "InternalNode"
	KindPublicKey = "PublicKey"
)

// compare orders resources of one kind by creation time, namespace and name.
func compare(m, o *objects.Metadata) int {
	return cmp.Or(m.Created.Compare(o.Created), strings.Compare(m.Namespace, o.Namespace),
		strings.Compare(m.Name, o.Name))
}

// The order of rules has room for seconds until 2038, and as much again for rules that come last.
const orderLast = 1 << 31

// order returns the order of the resource's chains and rules among those of equal priority. Ties
// are broken by namespace and name.
func order(m *objects.Metadata, last bool) int64 {
	n := min(max(m.Created.Unix(), 0), orderLast-1)
	if last {
		n += orderLast
	}
	return n
}

// faults collects the faults of one resource, each with the path of its field.
type faults []string

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, field+": "+fmt.Sprintf(format, args...))
}

func (f faults) String() string { return strings.Join(f, "; ") }

// read parses a part of a resource, whose path is field, into to.
func (f *faults) read(field string, part json.RawMessage, to any) {
	if fault := objects.ReadPart(field, part, to); fault != "" {
		*f = append(*f, fault)
	}
}

// readStrictly also reports fields that to does not have. A rule without the part of its match that
// is not understood would match too much.
func (f *faults) readStrictly(field string, part json.RawMessage, to any) {
	before := len(*f)
	if f.read(field, part, to); len(*f) > before || len(part) == 0 {
		return
	}
	fresh := reflect.New(reflect.TypeOf(to).Elem()).Interface()
	unknown, err := strictjson.UnmarshalStrict(part, fresh, strictjson.DisallowUnknownFields)
	if err != nil {
		f.add(field, "%v", err)
	}
	for _, u := range unknown {
		path := u.Error()
		if named, ok := u.(strictjson.FieldError); ok {
			path = named.FieldPath()
		}
		f.add(field+"."+path, "this version of culvert does not know this field; remove it, or update culvert")
	}
}
