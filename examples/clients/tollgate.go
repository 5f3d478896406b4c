// Package tollgate is net/http middleware: one check per request. Standard library only.
//
//	handler = tollgate.Limit(handler, "http://127.0.0.1:8080", "api", os.Getenv("TOLLGATE_TOKEN"))
//
// The deadline covers the whole check. If no decision arrives in time, requests pass (failOpen) or get status 503.
package tollgate

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"time"
)

const (
	deadline = 250 * time.Millisecond
	failOpen = true
)

var (
	passedOn = []string{"Retry-After", "RateLimit", "RateLimit-Policy"}
	client   = &http.Client{Timeout: deadline}
)

// Check returns 200 if the request may pass, otherwise the status of the refusal. It also returns all headers of the
// response; passedOn lists those for the client.
func Check(url, domain, token string, attributes map[string]string) (int, http.Header) {
	failed := http.StatusServiceUnavailable
	if failOpen {
		failed = http.StatusOK
	}
	body, err := json.Marshal(map[string]any{"domain": domain, "attributes": attributes})
	if err != nil {
		return failed, nil
	}
	request, err := http.NewRequest(http.MethodPost, url+"/v1/check", bytes.NewReader(body))
	if err != nil {
		return failed, nil
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return failed, nil
	}
	response.Body.Close()
	if response.Header.Get("Content-Type") != "application/json" {
		return failed, nil // Not a decision: an invalid request or token, or an overloaded server.
	}
	return response.StatusCode, response.Header
}

// Limit returns a handler that checks each request before it calls next.
func Limit(next http.Handler, url, domain, token string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ip, _, _ := net.SplitHostPort(r.RemoteAddr)
		attributes := map[string]string{"client_ip": ip, "path": r.URL.Path, "method": r.Method}
		status, headers := Check(url, domain, token, attributes)
		for _, name := range passedOn {
			if value := headers.Get(name); value != "" {
				w.Header().Set(name, value)
			}
		}
		if status == http.StatusOK {
			next.ServeHTTP(w, r)
		} else {
			w.WriteHeader(status)
		}
	})
}
