package objects

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/nat/rules"
)

// An Object is an object from the API server. Its parts are parsed when its kind is known, so that
// a faulty one affects nothing else.
type Object struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   Metadata        `json:"metadata"`
	Spec       json.RawMessage `json:"spec,omitempty"`
	Status     json.RawMessage `json:"status,omitempty"`
	// The content of an EndpointSlice.
	AddressType json.RawMessage `json:"addressType,omitempty"`
	Endpoints   json.RawMessage `json:"endpoints,omitempty"`
	Ports       json.RawMessage `json:"ports,omitempty"`

	Annotations map[string]string `json:"-"`
	Generation  int64             `json:"-"`
	Deleting    bool              `json:"-"`
}

// Metadata is the part of an object's metadata that outlives the Object.
type Metadata struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace,omitempty"`
	UID       string            `json:"uid,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Created   time.Time         `json:"creationTimestamp"`
}

// Of reads an object of a kind. Its metadata are valid, because the API server has checked them.
func Of(kind string, u *unstructured.Unstructured) *Object {
	o := &Object{APIVersion: u.GetAPIVersion(), Kind: kind, Metadata: Metadata{
		Name: u.GetName(), Namespace: u.GetNamespace(), UID: string(u.GetUID()), Labels: u.GetLabels(),
		Created: u.GetCreationTimestamp().Time,
	}, Annotations: u.GetAnnotations(), Generation: u.GetGeneration(), Deleting: u.GetDeletionTimestamp() != nil}
	o.Spec, o.Status = PartOf(u, "spec"), PartOf(u, "status")
	o.AddressType, o.Endpoints, o.Ports = PartOf(u, "addressType"), PartOf(u, "endpoints"), PartOf(u, "ports")
	return o
}

// PartOf returns a part of an object unparsed; "null" if it is missing.
func PartOf(u *unstructured.Unstructured, name string) json.RawMessage {
	if raw, ok := u.Object[name].(json.RawMessage); ok {
		return raw
	}
	raw, _ := json.Marshal(u.Object[name]) // what was JSON is JSON
	return raw
}

// Key returns the name of the object among those of all kinds.
func (o *Object) Key() rules.Key {
	return rules.Key{Kind: o.Kind, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
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
