package objects

import "cmp"

// A Service is the content of a Service.
type Service struct {
	Spec   ServiceSpec
	Status struct {
		LoadBalancer struct {
			Ingress []struct {
				IP       string `json:"ip"`
				Hostname string `json:"hostname"`
				IPMode   string `json:"ipMode"`
			} `json:"ingress"`
		} `json:"loadBalancer"`
	}
}

// ServiceSpec is the spec of a Service.
type ServiceSpec struct {
	Type       string   `json:"type"`
	ClusterIP  string   `json:"clusterIP"`
	ClusterIPs []string `json:"clusterIPs"`
	IPFamilies []string `json:"ipFamilies"`
	Ports      []struct {
		Name        string `json:"name"`
		Protocol    string `json:"protocol"`
		Port        int64  `json:"port"`
		NodePort    int64  `json:"nodePort"`
		AppProtocol string `json:"appProtocol"`
	} `json:"ports"`
	ExternalIPs              []string `json:"externalIPs"`
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges"`
	ExternalTrafficPolicy    string   `json:"externalTrafficPolicy"`
	InternalTrafficPolicy    string   `json:"internalTrafficPolicy"`
	TrafficDistribution      string   `json:"trafficDistribution"`
	SessionAffinity          string   `json:"sessionAffinity"`
	SessionAffinityConfig    struct {
		ClientIP struct {
			TimeoutSeconds *int64 `json:"timeoutSeconds"`
		} `json:"clientIP"`
	} `json:"sessionAffinityConfig"`
	HealthCheckNodePort int64 `json:"healthCheckNodePort"`
}

// ReadService reads a Service. Beside a fault, it returns what it can read.
func ReadService(o *Object) (s Service, fault string) {
	fault = cmp.Or(ReadPart("spec", o.Spec, &s.Spec), ReadPart("status", o.Status, &s.Status))
	return s, fault
}
