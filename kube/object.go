package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	strictjson "sigs.k8s.io/json"

	"culvert/nat/rules"
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

// An Object is a resource from the API server. Its parts are parsed when its kind is known, so that
// a faulty one affects nothing else.
type Object struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   Metadata        `json:"metadata"`
	Spec       json.RawMessage `json:"spec,omitempty"`
	Status     json.RawMessage `json:"status,omitempty"`
}

// Metadata is the part of a resource's metadata used here.
type Metadata struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace,omitempty"`
	UID       string            `json:"uid,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Created   time.Time         `json:"creationTimestamp"`
}

// Key returns the key of the resource's rules.
func (o *Object) Key() rules.Key {
	return rules.Key{Kind: o.Kind, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
}

// compare orders resources of one kind by creation time, namespace and name.
func (m *Metadata) compare(o *Metadata) int {
	if c := m.Created.Compare(o.Created); c != 0 {
		return c
	}
	if c := strings.Compare(m.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(m.Name, o.Name)
}

// The order of rules has room for seconds until 2038, and as much again for rules that come last.
const orderLast = 1 << 31

// order returns the order of the resource's chains and rules among those of equal priority. Ties
// are broken by namespace and name.
func (m *Metadata) order(last bool) int64 {
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
	if fault := ReadPart(field, part, to); fault != "" {
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

// ReadPart parses a part of an object, whose path is field, into to. It returns "" or the fault,
// with the path of the field.
func ReadPart(field string, part json.RawMessage, to any) (fault string) {
	if len(part) == 0 {
		return ""
	}
	err := json.Unmarshal(part, to)
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		if err != nil {
			return fmt.Sprintf("%s: %v", field, err)
		}
		return ""
	}
	if wrong.Field != "" {
		field += "." + wrong.Field
	}
	want, of := wrong.Type.Kind(), wrong.Value
	switch {
	case strings.HasPrefix(of, "number ") && want != reflect.String:
		return fmt.Sprintf("%s: %s is out of range", field, of)
	case want == reflect.String:
		return fmt.Sprintf("%s: a %s, where a string belongs", field, of)
	case want == reflect.Bool:
		return fmt.Sprintf("%s: a %s, where true or false belongs", field, of)
	case want == reflect.Slice:
		return fmt.Sprintf("%s: a %s, where a list belongs", field, of)
	case want == reflect.Struct:
		return fmt.Sprintf("%s: a %s, where an object belongs", field, of)
	}
	return fmt.Sprintf("%s: a %s, where a number belongs", field, of)
}
