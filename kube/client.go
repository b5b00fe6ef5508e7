package kube

import (
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// NewClient returns a client that leaves large parts of objects as json.RawMessage, to be parsed
// into other types: specs, the endpoints and ports of an EndpointSlice, and the services of
// PeerExports. Such objects cannot be copied by DeepCopy.
func NewClient(c *rest.Config) (dynamic.Interface, error) {
	c = dynamic.ConfigFor(c)
	c.NegotiatedSerializer = rawSpecs{c.NegotiatedSerializer}
	client, err := rest.UnversionedRESTClientFor(c)
	if err != nil {
		return nil, err
	}
	return dynamic.New(client), nil
}

// rawSpecs are the serializers of a dynamic client; the JSON one leaves specs unparsed.
type rawSpecs struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes is called by client-go for each request, from several goroutines.
func (s rawSpecs) SupportedMediaTypes() []runtime.SerializerInfo {
	all := slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes()) // the original is shared
	for i := range all {
		if all[i].MediaType == runtime.ContentTypeJSON {
			all[i].Serializer = rawSpec{all[i].Serializer}
		}
	}
	return all
}

type rawSpec struct{ runtime.Serializer }

// Decode decodes a list, an object, or an error of the API server.
func (s rawSpec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object,
	*schema.GroupVersionKind, error) {
	var list *unstructured.UnstructuredList
	var one *unstructured.Unstructured
	switch o := into.(type) {
	case *unstructured.UnstructuredList:
		list = o
	case *unstructured.Unstructured:
		one = o
	case nil:
		one = &unstructured.Unstructured{}
	default:
		return s.Serializer.Decode(data, defaults, into)
	}
	o, err := readObject(data)
	if err != nil {
		return nil, nil, err
	}
	meta := unstructured.Unstructured{Object: o}
	kind := meta.GroupVersionKind()
	if kind.Group == "" && kind.Kind == "Status" {
		return s.Serializer.Decode(data, defaults, into)
	}
	if list == nil {
		one.Object = o
		return one, &kind, nil
	}
	items, _ := o["items"].([]unstructured.Unstructured)
	delete(o, "items")
	list.Object, list.Items = o, items
	return list, &kind, nil
}

// readObject parses an object except for the parts left as they are.
func readObject(data []byte) (map[string]any, error) {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return nil, err
	}
	o := make(map[string]any, len(parts))
	for name, part := range parts {
		var value any
		var err error
		switch name {
		case "spec", "endpoints", "ports", "services", "managedFields":
			value = part
		case "metadata":
			value, err = readObject(part)
		case "items":
			value, err = readItems(part)
		default:
			err = utiljson.Unmarshal(part, &value)
		}
		if err != nil {
			return nil, err
		}
		o[name] = value
	}
	return o, nil
}

func readItems(data []byte) ([]unstructured.Unstructured, error) {
	var parts []json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return nil, err
	}
	items := make([]unstructured.Unstructured, len(parts))
	for i, part := range parts {
		var err error
		if items[i].Object, err = readObject(part); err != nil {
			return nil, err
		}
	}
	return items, nil
}
