package multicluster

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"culvert/kube/mcs"
	"culvert/kube/objects"
)

// putExport takes a ServiceExport. A version that this program has written itself changes nothing.
func (s *State) putExport(name types.NamespacedName, e *mcs.Export) {
	if was := s.exports[name]; was != nil && was.Object.GetResourceVersion() == e.Object.GetResourceVersion() {
		return
	}
	s.exports[name] = e
	s.touch(name)
}

// putImport takes a ServiceImport, as putExport does; nil: it has gone.
func (s *State) putImport(name types.NamespacedName, u *unstructured.Unstructured) {
	switch was := s.imports[name]; {
	case was == nil && u == nil, was != nil && u != nil && was.GetResourceVersion() == u.GetResourceVersion():
		return
	case u == nil:
		delete(s.imports, name)
	default:
		s.imports[name] = u
	}
	s.touch(name)
}

// putDerived takes a Service with LabelManaged; nil: it has gone. Its label has the name that it
// belongs to.
func (s *State) putDerived(name types.NamespacedName, u *unstructured.Unstructured) {
	if was := s.derived[name]; was != nil && u != nil && was.GetResourceVersion() == u.GetResourceVersion() {
		return
	}
	for _, x := range []*unstructured.Unstructured{s.derived[name], u} {
		if x != nil {
			s.touch(types.NamespacedName{Namespace: name.Namespace, Name: x.GetLabels()[mcs.LabelManaged]})
		}
	}
	if s.derived[name] = u; u == nil {
		delete(s.derived, name)
	}
}

// putSlice takes an EndpointSlice of a Service; nil: it has gone.
func (s *State) putSlice(name types.NamespacedName, x *mcs.Slice) {
	if was := s.slices.all[name]; was != nil {
		s.slices.drop(name, was.Of)
		s.touchExported(was.Of)
	}
	if x != nil {
		s.slices.put(name, x.Of, x)
		s.touchExported(x.Of)
	}
}

// putOurs takes an EndpointSlice with LabelManaged that belongs to a name.
func (s *State) putOurs(name, of types.NamespacedName, x *ourSlice) {
	if was := s.ours.all[name]; was != nil && was.meta.version == x.meta.version {
		return
	}
	s.dropOurs(name)
	s.setOurs(name, of, x)
	s.touch(of)
}

func (s *State) setOurs(name, of types.NamespacedName, x *ourSlice) {
	x.of = of
	s.ours.put(name, of, x)
}

// dropOurs forgets one.
func (s *State) dropOurs(name types.NamespacedName) {
	if was := s.ours.all[name]; was != nil {
		s.ours.drop(name, was.of)
		s.touch(was.of)
	}
}

// there returns the object that a write is about, as the State has it; nil: it is not there.
func (s *State) there(w *Write) any {
	name := types.NamespacedName{Namespace: w.Object.GetNamespace(), Name: w.Object.GetName()}
	switch w.Resource {
	case objects.ServiceExports:
		return s.exports[name]
	case objects.ServiceImports:
		return s.imports[name]
	case objects.Services:
		return s.derived[name]
	}
	return s.ours.all[name]
}

// keep takes the answer to a write, unless a watch has delivered another version meanwhile: it does
// so only once. keep returns the set that has the object now; "" if none has.
func (s *State) keep(w *Write, u *unstructured.Unstructured) (set string) {
	if s.there(w) != w.was {
		return ""
	}
	name := types.NamespacedName{Namespace: w.Object.GetNamespace(), Name: w.Object.GetName()}
	gone := w.Verb == "delete"
	switch w.Resource {
	case objects.ServiceExports:
		set, s.exports[name] = setExports, mcs.ReadExport(u)
	case objects.ServiceImports:
		if set, s.imports[name] = setImports, u; gone {
			delete(s.imports, name)
		}
	case objects.Services:
		if set, s.derived[name] = setDerived, u; gone {
			delete(s.derived, name)
		}
	case objects.EndpointSlices:
		if was := s.ours.all[name]; was != nil {
			s.ours.drop(name, was.of)
		}
		if set = setOurs; !gone {
			x, of := readOurs(u)
			s.setOurs(name, of, x)
		}
	default:
		return ""
	}
	if gone {
		return ""
	}
	return set
}
